"""Images on the command line: what the options' text means, and what is told about it."""

from pathlib import Path
from typing import TYPE_CHECKING

from quantry.errors import RecipeError

if TYPE_CHECKING:
    from quantry.observe import ImageOptions


def number(option: str, text: str) -> float:
    """Return a number such as ``0.5`` or ``1/255``.

    Args:
        option: Name of the option, for the message.
        text: What the user wrote.

    Raises:
        RecipeError: It is no number.

    Example:
        >>> number("--pixel-scale", "1/4")
        0.25
    """
    dividend, slash, divisor = text.partition("/")
    try:
        return float(dividend) / float(divisor) if slash else float(dividend)
    except (ValueError, ZeroDivisionError) as error:
        raise RecipeError(f"{option} must be a number such as 0.5 or 1/255, got {text!r}") from error


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return numbers separated by commas.

    Args:
        option: Name of the option, for the message.
        text: What the user wrote.

    Raises:
        RecipeError: One of them is no number.
    """
    return tuple(number(option, part) for part in text.split(","))


def image_notes(data: Path | None, options: "ImageOptions") -> tuple[str, ...]:
    """Return how images became inputs, as a note; none where the data are arrays."""
    if data is None or not data.is_dir() or next(data.glob("*.np[yz]"), next(data.glob("*/*.npy"), None)):
        return ()
    crop = f" of {options.crop_fraction:g}" if options.resize == "center-crop" else ""
    mean, std = (",".join(f"{value:g}" for value in values) for values in (options.mean, options.std))
    note = (
        f"images enter as {options.color}, pixels 0..255 times {options.scale:.6g}, minus mean {mean}, over std {std}; "
        f"resize {options.resize}{crop}. If the model was trained otherwise: --color, --pixel-scale, --mean, --std, "
        "--resize, --crop-fraction"
    )
    return (note,)
