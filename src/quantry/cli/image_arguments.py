"""Options for images on the command line: parsing, warnings and notes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantry.cli.frame import current_output
from quantry.errors import RecipeError

if TYPE_CHECKING:
    from quantry.data.images import ImageOptions

SIZE = "Height and width of images, such as 480x640, for a model with dynamic sides; default: those of its input."

# Parameters of the commands that read images; `quantry quantize` also shows their defaults.
Mean = Annotated[str | None, typer.Option(help="Per-channel mean of images; see `quantry quantize`.")]
Std = Annotated[str | None, typer.Option(help="Per-channel standard deviation of images.")]
PixelScale = Annotated[str | None, typer.Option(help="Factor on pixel values 0..255; 1/255 gives 0..1.")]
Color = Annotated[str | None, typer.Option(help="RGB or BGR.")]
Resize = Annotated[str | None, typer.Option(help="stretch, letterbox or center-crop.")]
CropFraction = Annotated[float | None, typer.Option(help="Fraction of the image that center-crop keeps.")]
Size = Annotated[str | None, typer.Option(help=SIZE)]


def number(option: str, text: str) -> float:
    """Return a number such as ``0.5`` or ``1/255``.

    Args:
        option: Name of the option, for the message.
        text: The value.

    Raises:
        RecipeError: The value is not a number.

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
        text: The value.

    Raises:
        RecipeError: A value is not a number.
    """
    return tuple(number(option, part) for part in text.split(","))


def sides(text: str) -> tuple[int, int]:
    """Return height and width of ``HxW``.

    Raises:
        RecipeError: The text has another form.

    Example:
        >>> sides("480x640")
        (480, 640)
    """
    height, by, width = text.lower().partition("x")
    if not (by and height.strip().isdigit() and width.strip().isdigit() and int(height) and int(width)):
        raise RecipeError(f"--size must be HEIGHTxWIDTH in pixels, such as 480x640, got {text!r}")
    return int(height), int(width)


_GUESSED_ON = 8

# Each option of the command line: the field of `ImageOptions`, and how its text is read.
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "mean": ("mean", lambda text: numbers("--mean", text)),
    "std": ("std", lambda text: numbers("--std", text)),
    "pixel_scale": ("scale", lambda text: number("--pixel-scale", text)),
    "color": ("color", str.upper),
    "resize": ("resize", str.lower),
    "crop_fraction": ("crop_fraction", float),
    "size": ("size", sides),
}


def given_images(**options: str | float | None) -> dict[str, Any]:
    """Return the fields of `ImageOptions` that were given; `ImageOptions` checks their values.

    Args:
        options: The options mean, std, pixel_scale, color, resize, crop_fraction and size; None was not given.

    Raises:
        RecipeError: A value cannot be read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return {_FIELDS[name][0]: _FIELDS[name][1](value) for name, value in given.items()}


def warn_of_default_pixels(model: Path, data: Path | None) -> None:
    """Warn on stderr, before any work, if images are fed to a float model without pixel options.

    Args:
        model: The float model.
        data: The data, for which no image options were given.
    """
    if data is None or holds_arrays(data) or not model.is_file():
        return
    from quantry.data.open_data import calibration_data, pixel_notes
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    loaded = model_source(model).load()
    opened = calibration_data(data, input_signatures(loaded))
    notes = pixel_notes(opened)
    for note in notes:
        current_output().warn(note)
    if notes:
        from quantry.diagnosis import check_pixels, command_line

        # Without any option the user knows least, so a guess from the model's own outputs is worth a few seconds.
        check = check_pixels(loaded, opened, _GUESSED_ON)
        if check is not None and check.better is not None:
            advice = "the model is more certain of these images with other pixel values; probably it was trained with "
            current_output().warn(f"{advice}{command_line(check.better.options)}")


def holds_arrays(data: Path) -> bool:
    """Return whether the data are arrays (a file, a folder or a list of files) instead of images."""
    if data.suffix.lower() == ".txt" and data.is_file():
        first = data.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        return first.strip().lower().endswith((".npy", ".npz"))
    return not data.is_dir() or next(data.glob("*.np[yz]"), next(data.glob("*/*.npy"), None)) is not None


def image_notes(data: Path | None, options: "ImageOptions") -> tuple[str, ...]:
    """Return a note on how images became inputs; empty if the data are arrays."""
    if data is None or holds_arrays(data):
        return ()
    crop = f" of {options.crop_fraction:g}" if options.resize == "center-crop" else ""
    hint = " (letterbox for most detectors)" if options.resize == "stretch" else ""
    mean, std = (",".join(f"{value:g}" for value in values) for values in (options.mean, options.std))
    note = (
        f"images are used as {options.color}, pixels 0..255 times {options.scale:.6g}, minus mean {mean}, divided by "
        f"std {std}; resize {options.resize}{crop}. If the model was trained differently, use --color, --pixel-scale, "
        f"--mean, --std, --resize{hint}, --crop-fraction"
    )
    return (note,)
