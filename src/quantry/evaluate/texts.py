"""Scores, sizes and speeds as texts, the same in terminals, pages and notebooks."""

import math

UNITS = {"sqnr": "dB", "psnr": "dB"}
"""Units of metrics that have one."""

_SMALLEST = 1e-4
_USUAL = 1e-3, 1e3
_MAX_DECIMALS = 6


def score_texts(value: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    """Return a score and its interval, with as many decimals as the width of the interval supports.

    Args:
        value: The score.
        interval: Its 95 % interval; None if it is unknown, as for a single sample.

    Returns:
        Both as texts; the second is empty without an interval.

    Example:
        >>> score_texts(40.6631, (39.6631, 41.5921)), score_texts(0.999962, (0.999951, 0.999971))
        (('40.7', '39.7 .. 41.6'), ('0.999962', '0.999951 .. 0.999971'))
        >>> score_texts(3.14159e-08, (3.1e-08, 3.2e-08)), score_texts(1.0, None)
        (('3.142e-08', '3.1e-08 .. 3.2e-08'), ('1', ''))
    """
    if interval is None:
        return f"{value:.4g}", ""
    low, high = interval
    width = high - low
    known = math.isfinite(width) and width > 0 and max(abs(low), abs(high)) >= _SMALLEST
    written = f".{min(max(1 - math.floor(math.log10(width)), 0), _MAX_DECIMALS)}f" if known else ".4g"
    return f"{value:{written}}", f"{low:{written}} .. {high:{written}}"


def score_text(value: float) -> str:
    """Return a score alone: four decimals, as accuracies are written, or four digits if it is very small or large.

    Example:
        >>> score_text(0.99333), score_text(0.0), score_text(0.00012345), score_text(-12345.678)
        ('0.9933', '0.0000', '0.0001234', '-1.235e+04')
    """
    return f"{value:.4f}" if value == 0 or _USUAL[0] <= abs(value) < _USUAL[1] else f"{value:.4g}"


def size_text(before: int, after: int) -> str:
    """Return how a size changed.

    Example:
        >>> size_text(400, 100), size_text(100, 125)
        ('4.0x smaller', '1.25x larger')
    """
    return f"{_times(before / after)} smaller" if before >= after else f"{_times(after / before)} larger"


def bytes_text(size: int) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> bytes_text(29_123), bytes_text(3_655_000)
        ('29 kB', '3.7 MB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"


def speed_text(reference_ms: float, other_ms: float) -> str:
    """Return how fast a model is compared with another.

    Example:
        >>> speed_text(4.0, 2.0), speed_text(2.0, 3.0)
        ('2.0x faster', '1.50x slower')
    """
    ratio = reference_ms / other_ms
    return f"{_times(ratio)} faster" if ratio >= 1 else f"{_times(1 / ratio)} slower"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def objective_text(name: str, value: float | None) -> str:
    """Return what a trial of a search costs, in one unit for all trials, so that they can be compared; empty for None.

    Args:
        name: Name of the objective: sizes are in bytes and latencies in milliseconds.
        value: Its value.

    Example:
        >>> objective_text("size", 1_234_567), objective_text("latency", 1.234)
        ('1,234.6 kB', '1.23 ms')
    """
    if value is None:
        return ""
    return f"{value / 1e3:,.1f} kB" if name == "size" else f"{value:.2f} ms" if name == "latency" else f"{value:.4g}"
