"""Options for images on the command line: parsing, warnings and notes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from quantry.cli.frame import current_output
from quantry.cli.option_parameters import OptionGroup
from quantry.errors import RecipeError
from quantry.notes import Note, NoteKind
from quantry.recipe.option_fields import option

if TYPE_CHECKING:
    from quantry.data.images import ImageOptions


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
    return tuple(number(option, word) for word in text.split(","))


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


@dataclass(frozen=True)
class ImageArguments(OptionGroup):
    """The options of commands that read images; None was not given.

    Attributes:
        mean: Per-channel mean of images; see `quantry quantize`.
        std: Per-channel standard deviation of images.
        pixel_scale: Factor on pixel values 0..255; 1/255 gives 0..1.
        color: RGB or BGR.
        resize: stretch, letterbox or center-crop.
        crop_fraction: Fraction of the image that center-crop keeps.
        size: Height and width of images, such as 480x640, for a model with dynamic sides; default: those of its input.
    """

    heading: ClassVar[str] = "Images"

    mean: str | None = None
    std: str | None = None
    pixel_scale: str | None = None
    color: str | None = None
    resize: str | None = None
    crop_fraction: float | None = None
    size: str | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields of `ImageOptions` that were given; `ImageOptions` checks their values.

        Raises:
            RecipeError: A value cannot be read.
        """
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {_FIELDS[name][0]: _FIELDS[name][1](value) for name, value in values.items()}

    def words(self) -> list[str]:
        """Return the given options as words of a command line."""
        # With "=": a value that starts with a minus sign would be parsed as another option.
        return [f"--{name.replace('_', '-')}={value}" for name, value in vars(self).items() if value is not None]

    def options(self) -> "ImageOptions | None":
        """Return how images become inputs; None if nothing was given."""
        from quantry.data.images import ImageOptions

        values = self.given()
        return ImageOptions(**values) if values else None


@dataclass(frozen=True)
class ExplainedImageArguments(ImageArguments):
    """The same options, explained with their defaults.

    Attributes:
        mean: Per-channel mean of images, in units after --pixel-scale, such as 123.7,116.3,103.5.
        std: Per-channel standard deviation, in the same units.
        pixel_scale: Factor of pixel values 0..255, applied first; 1/255 gives 0..1.
        crop_fraction: Fraction of the short side that center-crop keeps; 0.875 is 224 of 256.
    """

    mean: str | None = option(None, shown="0,0,0")
    std: str | None = option(None, shown="1,1,1")
    pixel_scale: str | None = option(None, shown="1")
    color: str | None = option(None, shown="RGB")
    resize: str | None = option(None, shown="stretch")
    crop_fraction: float | None = option(None, shown="1.0")


def warn_of_default_pixels(model: Path, data: Path | None) -> None:
    """Warn on stderr, before any work, if images are fed to a float model without pixel options.

    Args:
        model: The float model.
        data: The data, for which no image options were given.
    """
    guess = guessed_pixels(model, data)
    for note in () if guess is None else guess.warnings:
        current_output().warn(note)


@dataclass(frozen=True)
class PixelGuess:
    """What is known about the pixels of images for which no pixel option was given.

    Attributes:
        warnings: What to tell the user.
        alternatives: Usual pixel values, best first, if the model's outputs are clearly more certain with the first of
            them; else none.
    """

    warnings: "tuple[Note, ...]"
    alternatives: "tuple[ImageOptions, ...]" = ()


def guessed_pixels(model: Path, data: Path | None) -> PixelGuess | None:
    """Return what the model's outputs say about pixels 0..255; None if that is no question.

    Args:
        model: The float model.
        data: The data, for which no image options were given.
    """
    from quantry.data.open_data import calibration_data, holds_arrays, pixel_notes

    if data is None or holds_arrays(data) or not model.is_file():
        return None
    from quantry.diagnosis import check_pixels, command_line
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    loaded = model_source(model).load()
    opened = calibration_data(data, input_signatures(loaded))
    notes = pixel_notes(opened)
    # Without any option the user knows least, so a guess from the model's own outputs is worth a few seconds.
    check = check_pixels(loaded, opened, _GUESSED_ON) if notes else None
    if check is None or check.better is None:
        return PixelGuess(notes) if notes else None
    message = (
        "the model is more certain of these images with other pixel values; probably it was trained with {options}"
    )
    advice = Note.of(message, NoteKind.IMPORTANT, options=command_line(check.better.options))
    return PixelGuess((*notes, advice), tuple(choice.options for choice in check.alternatives))


def image_notes(data: Path | None, image_options: "ImageOptions | None") -> tuple[Note, ...]:
    """Return a note on how images became inputs; empty if the data are arrays."""
    from quantry.data.images import ImageOptions
    from quantry.data.open_data import holds_arrays

    if data is None or holds_arrays(data):
        return ()

    options = image_options or ImageOptions()
    crop = f" of {options.crop_fraction:g}" if options.resize == "center-crop" else ""
    hint = " (letterbox for most detectors)" if options.resize == "stretch" else ""
    mean, std = (",".join(f"{value:g}" for value in values) for values in (options.mean, options.std))
    note = Note.of(
        "images are used as {color}, pixels 0..255 times {scale:.6g}, minus mean {mean}, divided by std {std}; resize "
        "{resize}{crop}. If the model was trained differently, use --color, --pixel-scale, --mean, --std, "
        "--resize{hint}, --crop-fraction",
        NoteKind.IMPORTANT,
        color=str(options.color),
        scale=options.scale,
        mean=mean,
        std=std,
        resize=str(options.resize),
        crop=crop,
        hint=hint,
    )
    return (note,)
