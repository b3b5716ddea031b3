"""Doubts about options of images: numbers that belong to pixels of another scale."""

from quantry.observe.image_options import ImageOptions

_WIDE = 300.0
"""No network is fed wider values than raw pixels, which span 255."""

_NARROW = 0.05
"""Inputs that span less are as good as constant; the narrowest in use span 1."""

_UNIT = 1.5
"""Means of pixels 0..1 and of pixels -1..1 lie below this, means of pixels 0..255 far above."""


def pixel_doubt(options: ImageOptions, channels: int) -> str | None:
    """Return what is doubtful about the numbers that images become, and the likely remedy; None where nothing is.

    ``x = (pixel * scale - mean) / std``, so mean and std must be in the unit of ``pixel * scale``. Most mistakes are to
    give those of pixels 0..1 without the scale, or those of pixels 0..255 with it.

    Args:
        options: What is done to images.
        channels: How many channels the model takes.

    Example:
        >>> pixel_doubt(ImageOptions(scale=1 / 255, mean=(0.5,), std=(0.5,)), 3) is None
        True
    """
    means, stds = options.mean[:channels], options.std[:channels]
    top = 255 * options.scale
    ends = [((0 - mean) / std, (top - mean) / std) for mean, std in _pairs(means, stds)]
    low, high = min(map(min, ends)), max(map(max, ends))
    span = max(abs(end - start) for start, end in ends)
    small_means = any(means) and max(map(abs, means)) <= _UNIT
    if abs(top) > 10 and (span > _WIDE or small_means):
        advice = "mean and std look like those of pixels 0..1: give --pixel-scale 1/255, ImageOptions(scale=1/255), too"
        return _doubt(low, high, advice)
    far = any(not min(0, top) - abs(top) <= mean <= max(0, top) + abs(top) for mean in means)
    if span < _NARROW or far:
        advice = "mean and std look like those of pixels 0..255: leave out --pixel-scale, ImageOptions(scale=...),"
        return _doubt(low, high, f"{advice} or divide both by 255")
    return None


def _pairs(means: tuple[float, ...], stds: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return mean and std of each channel; one value serves all channels."""
    count = max(len(means), len(stds))
    return list(zip(*(values if len(values) > 1 else values * count for values in (means, stds)), strict=True))


def _doubt(low: float, high: float, advice: str) -> str:
    return (
        f"pixels 0..255 become inputs {low:.4g}..{high:.4g}, which hardly any model was trained on; {advice}. On wrong "
        "inputs ranges are wrong and metrics against the float model look good all the same"
    )
