"""Image files as calibration data: options, checks of the pixel arithmetic, and reading."""

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from quantry.data.arrays import group_size, whole_groups
from quantry.data.calibration_data import SampleSource
from quantry.data.conform import Array, Signatures, describe
from quantry.errors import DataError, nearest_spelling
from quantry.graph.float_model import InputSignature
from quantry.memo import Digest, fingerprint, fingerprint_file

if TYPE_CHECKING:
    from PIL import Image

Layout = Literal["auto", "NCHW", "NHWC"]
Color = Literal["RGB", "BGR"]
Resize = Literal["stretch", "letterbox", "center-crop"]
PadPosition = Literal["end", "both"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class ImageOptions:
    """How an image becomes an input: decode, resize, pad or crop, then ``x = (pixel * scale - mean) / std``.

    Pixels are 0..255. Images are rotated according to their EXIF orientation. A model with one channel gets the
    luminance. Downscaling averages over all source pixels, as Pillow does.

    Attributes:
        size: Height and width; None uses those of the model's input.
        mean: Subtracted per channel, in the order of ``color``, after scaling.
        std: Divisor per channel, in the order of ``color``.
        scale: Factor of the pixel values; ``1 / 255`` gives 0..1.
        layout: Order of the model's axes; "auto" takes the axis of length 1 or 3 for the channels.
        color: Order of the channels.
        resize: "stretch" ignores the aspect ratio; "letterbox" keeps it and pads; "center-crop" keeps it, fills the
            frame and crops the rest.
        pad_value: Pixel value of the padding of "letterbox", before scaling.
        pad_position: Where "letterbox" pads: "end" is right or bottom, "both" centres the image.
        crop_fraction: Fraction of the resized short side that "center-crop" keeps; 0.875 is 224 of 256.
        interpolation: Filter used for resizing.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: float = 1.0
    layout: Layout = "auto"
    color: Color = "RGB"
    resize: Resize = "stretch"
    pad_value: int = 114
    pad_position: PadPosition = "end"
    crop_fraction: float = 1.0
    interpolation: Interpolation = "bilinear"

    def __new__(cls, *_: object, **values: object) -> "ImageOptions":
        """Raise for misspelt names, with the nearest spelling, before the dataclass raises a TypeError."""
        for name in values:
            if name not in cls.__dataclass_fields__:
                hint = nearest_spelling(name, cls.__dataclass_fields__)
                raise DataError(f"the options of ImageOptions must exist, got {name!r}{hint}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in ("mean", "std"):
            object.__setattr__(self, field, _numbers(field, getattr(self, field)))
        if self.size is not None:
            object.__setattr__(self, "size", tuple(int(side) for side in _numbers("size", self.size)))
        for field in ("scale", "pad_value", "crop_fraction"):
            _check_number(field, getattr(self, field))
        object.__setattr__(self, "scale", float(self.scale))
        _check_choice("layout", self.layout, get_args(Layout))
        _check_choice("color", self.color, get_args(Color))
        _check_choice("resize", self.resize, get_args(Resize))
        _check_choice("pad_position", self.pad_position, get_args(PadPosition))
        _check_choice("interpolation", self.interpolation, get_args(Interpolation))
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise DataError(f"ImageOptions.size must be height and width, both positive, got {self.size!r}")
        if self.scale == 0:
            raise DataError("ImageOptions.scale must not be zero, got 0")
        if 0.0 in self.std:
            raise DataError(f"ImageOptions.std must not contain zero, got {self.std!r}")
        if not 0 <= self.pad_value <= 255:
            raise DataError(f"ImageOptions.pad_value must be a pixel value 0..255, got {self.pad_value!r}")
        if not 0 < self.crop_fraction <= 1:
            raise DataError(f"ImageOptions.crop_fraction must be in (0, 1], got {self.crop_fraction!r}")

    @property
    def keeps_pixels(self) -> bool:
        """Whether pixels stay as they are, so that integer inputs can be fed."""
        return self.scale == 1.0 and not any(self.mean) and all(value == 1.0 for value in self.std)


def scale_text(scale: float) -> str:
    """Return a pixel scale as people write it.

    Example:
        >>> scale_text(1 / 255), scale_text(1.0), scale_text(0.0172)
        ('1/255', '1', '0.0172')
    """
    fraction = f"1/{1 / scale:g}" if 0 < scale < 1 else ""
    return fraction if fraction and 1 / float(fraction[2:]) == scale else f"{scale!r}".removesuffix(".0")


def _numbers(field: str, entered: object) -> tuple[float, ...]:
    values = tuple(entered) if isinstance(entered, Iterable) and not isinstance(entered, str) else (None,)
    found = tuple(float(value) for value in values if isinstance(value, numbers.Real) and math.isfinite(value))
    if len(found) != len(values):
        raise DataError(f"ImageOptions.{field} must be finite numbers, one per channel or side, got {entered!r}")
    return found


def _check_number(field: str, value: object) -> None:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise DataError(f"ImageOptions.{field} must be a finite number, got {value!r}")


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = nearest_spelling(str(value), choices)
        raise DataError(f"ImageOptions.{field} must be one of {list(choices)}, got {value!r}{hint}")


_WIDE = 300.0
"""Raw pixels span 255; no model takes wider inputs."""

_NARROW = 0.05
"""Inputs that span less are almost constant; the narrowest in use span 1."""

_UNIT = 1.5
"""Means of pixels in 0..1 or -1..1 are smaller than this, means of pixels in 0..255 much larger."""


def pixel_doubt(options: ImageOptions, channels: int) -> str | None:
    """Return what looks wrong about the pixel arithmetic, and the likely fix; None if nothing does.

    ``x = (pixel * scale - mean) / std``, so mean and std must be in units of ``pixel * scale``. The usual mistakes are
    mean and std of pixels 0..1 without the scale, or those of pixels 0..255 with it.

    Args:
        options: The options of images.
        channels: Number of channels of the model's input.

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
        advice = "mean and std look like those of pixels 0..1: add --pixel-scale 1/255, ImageOptions(scale=1/255)"
        return _doubt(low, high, advice)
    far = any(not min(0, top) - abs(top) <= mean <= max(0, top) + abs(top) for mean in means)
    if span < _NARROW or far:
        advice = "mean and std look like those of pixels 0..255: remove --pixel-scale, ImageOptions(scale=...),"
        return _doubt(low, high, f"{advice} or divide both by 255")
    return None


def _pairs(means: tuple[float, ...], stds: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return mean and std of each channel; a single value applies to all channels."""
    count = max(len(means), len(stds))
    return list(zip(*(values if len(values) > 1 else values * count for values in (means, stds)), strict=True))


def _doubt(low: float, high: float, advice: str) -> str:
    return (
        f"pixels 0..255 become inputs {low:.4g}..{high:.4g}, which hardly any model was trained on; {advice}. With "
        "wrong inputs the ranges are wrong, although metrics against the float model still look good"
    )


IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

_WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes with more than 8 bits."""


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder and its subfolders, one of each folder in turn.

    Attributes:
        path: The folder.
        options: How images become inputs; None means `ImageOptions()`, with a note in the result.
    """

    path: str | Path
    options: ImageOptions | None = None


class ImageSource(SampleSource):
    """The images of an `ImageFolder`, shaped for a model with one input of rank 3 or 4.

    Attributes:
        pixels_by_default: Whether the model takes floats and the user did not say how pixels become floats.
        doubt: What looks wrong about the pixel arithmetic; None if nothing does.
    """

    def __init__(self, files: Sequence[Path], given: ImageOptions | None, inputs: Signatures, label: str) -> None:
        if len(inputs) != 1:
            names = [signature.name for signature in inputs]
            raise DataError(f"a folder of images needs a model with one input, got inputs {names}; in {label}")
        self._options = options = given or ImageOptions()
        self._frame = Frame.of(inputs[0], options, label)
        self.pixels_by_default = given is None and not self._frame.integer
        self.doubt = None if self._frame.integer else pixel_doubt(options, self._frame.channels)
        self._group = group_size(inputs) if len(inputs[0].shape) == 4 else 1
        groups = whole_groups(len(files), self._group, label)
        self._files = tuple(files[: groups * self._group])

    @property
    def options(self) -> ImageOptions:
        """How images become inputs."""
        return self._options

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self._files) // self._group

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The images of each sample."""
        starts = range(0, len(self._files), self._group)
        return tuple(self._files[start : start + self._group] for start in starts)

    @property
    def frame(self) -> "Frame":
        """The shape of the model's input."""
        return self._frame

    def read(self) -> Iterator[Array]:
        """Yield the images, in groups of the model's batch size."""
        return self.read_as(self._options)

    def read_as(self, options: ImageOptions, count: int | None = None) -> Iterator[Array]:
        """Yield the images with other options, in groups of the model's batch size.

        Args:
            options: How images become inputs.
            count: Number of groups, evenly spread because files may be sorted by class; None yields all.
        """
        count = self.size if count is None else min(count, self.size)
        for start in (self._group * (index * self.size // count) for index in range(count)):
            group = [load_image(path, options, self._frame) for path in self._files[start : start + self._group]]
            yield np.stack(group) if self._frame.batched else group[0]

    def digest(self, limit: int | None) -> Digest:
        """Return the digest of the files' bytes and of everything that is done to them."""
        files = self._files if limit is None else self._files[: limit * self._group]
        content = tuple(fingerprint_file(path) for path in files)
        return fingerprint(("images", content, self._options, self._frame, self._group))


@dataclass(frozen=True)
class Frame:
    """The shape that an image must have.

    Attributes:
        height: Rows.
        width: Columns.
        channels: 1 for luminance, 3 for color.
        channels_first: Whether the channel axis comes before rows and columns.
        integer: Whether the model takes uint8 pixels.
        batched: Whether the model has a batch axis.
    """

    height: int
    width: int
    channels: int
    channels_first: bool
    integer: bool
    batched: bool

    @classmethod
    def of(cls, signature: InputSignature, options: ImageOptions, label: str) -> "Frame":
        """Return the frame of a model's input.

        Raises:
            DataError: The input is not an image, or its size is dynamic and not given.
        """
        rank = len(signature.shape)
        if rank not in (3, 4):
            raise DataError(f"images need an input of rank 3 or 4, got {describe(signature)}; in {label}")
        channels_first, channels = _channel_axis(signature, options, label)
        sides = signature.shape[-2:] if channels_first else signature.shape[-3:-1]
        height, width = options.size or sides
        if not isinstance(height, int) or not isinstance(width, int):
            raise DataError(
                f"the size of images must be known, got a model with dynamic size {describe(signature)}: pass "
                f"ImageOptions(size=(height, width)); in {label}"
            )
        integer = signature.dtype == np.uint8
        if not integer and signature.dtype != np.float32:
            raise DataError(f"images need an input of float32 or uint8, got {describe(signature)}; in {label}")
        if integer and not options.keeps_pixels:
            raise DataError(
                f"a model with uint8 pixels needs scale 1, mean 0 and std 1, got {options.scale}, "
                f"{options.mean} and {options.std}; in {label}"
            )
        if channels == 3:
            for field, values in (("mean", options.mean), ("std", options.std)):
                if len(values) not in (1, 3):
                    raise DataError(f"ImageOptions.{field} must have 1 or 3 values, got {values!r}; in {label}")
        return cls(height, width, channels, channels_first, integer, batched=rank == 4)


def _channel_axis(signature: InputSignature, options: ImageOptions, label: str) -> tuple[bool, int]:
    """Return whether channels come first, and their number."""
    first, last = signature.shape[-3], signature.shape[-1]
    looks_first = first in (1, 3) or last not in (1, 3)
    channels_first = looks_first if options.layout == "auto" else options.layout == "NCHW"
    channels = first if channels_first else last
    if not isinstance(channels, int):
        return channels_first, 3
    if channels not in (1, 3):
        raise DataError(f"images must have 1 or 3 channels, got {describe(signature)} as {options.layout}; in {label}")
    return channels_first, channels


def load_image(path: Path, options: ImageOptions, frame: Frame) -> Array:
    """Return one image file in the form that the model needs, without batch axis.

    Raises:
        DataError: The file cannot be decoded, or has more than 8 bits per channel.
    """
    # Pillow is imported only when images are read: `import quantry` must stay light.
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            mode = file.mode
            upright = ImageOps.exif_transpose(file)
            image = upright.convert("L" if frame.channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"an image file must be readable, got {error}; in {path}") from error
    if mode in _WIDE_MODES:
        # Pillow has already clipped values above 255.
        advice = "convert it as for training"
        raise DataError(f"an image must have 8 bits per channel, got mode {mode!r}; {advice}; in {path}")
    pixels = np.asarray(_fit(image, options, frame))
    pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    if options.color == "BGR":
        pixels = pixels[:, :, ::-1]
    if not frame.integer:
        pixels = _normalise(pixels, options, frame)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) if frame.channels_first else pixels)


def _normalise(pixels: Array, options: ImageOptions, frame: Frame) -> Array:
    mean = np.array(options.mean[: frame.channels], np.float32)
    std = np.array(options.std[: frame.channels], np.float32)
    return (pixels.astype(np.float32) * np.float32(options.scale) - mean) / std


def _fit(image: "Image.Image", options: ImageOptions, frame: Frame) -> "Image.Image":
    from PIL import Image

    resample = Image.Resampling[options.interpolation.upper()]
    if options.resize == "stretch":
        return image.resize((frame.width, frame.height), resample)
    ratios = frame.width / image.width, frame.height / image.height
    if options.resize == "letterbox":
        ratio = min(ratios)
        width = min(frame.width, max(1, int(image.width * ratio)))
        height = min(frame.height, max(1, int(image.height * ratio)))
        canvas = Image.new(image.mode, (frame.width, frame.height), (options.pad_value,) * len(image.getbands()))
        centred = options.pad_position == "both"
        left, top = ((frame.width - width) // 2, (frame.height - height) // 2) if centred else (0, 0)
        canvas.paste(image.resize((width, height), resample), (left, top))
        return canvas
    ratio = max(ratios) / options.crop_fraction
    width = max(frame.width, round(image.width * ratio))
    height = max(frame.height, round(image.height * ratio))
    left, top = (width - frame.width) // 2, (height - frame.height) // 2
    return image.resize((width, height), resample).crop((left, top, left + frame.width, top + frame.height))
