"""A folder of images as calibration data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quantry.errors import DataError
from quantry.memo import Digest, fingerprint, fingerprint_file
from quantry.observe.array_source import group_size, whole_groups
from quantry.observe.conform import Array, Signatures, describe
from quantry.observe.image_options import ImageOptions
from quantry.observe.pixel_doubt import pixel_doubt
from quantry.observe.sample_source import SampleSource
from quantry.prepare import InputSignature

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

_WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of more than 8 bits."""


@dataclass(frozen=True)
class ImageFolder:
    """Asks for the images of a folder and its sub-folders, in the order of their paths.

    Attributes:
        path: The folder.
        options: What is done to each image; None does the same as `ImageOptions()`, with a note on the result.
    """

    path: str | Path
    options: ImageOptions | None = None


class ImageSource(SampleSource):
    """The images that an `ImageFolder` asks for, shaped for a model with one input of rank 3 or 4.

    Attributes:
        pixels_by_default: Whether nobody said how pixels become the floats that the model takes.
        doubt: What is doubtful about how they become floats; None where nothing is.
    """

    def __init__(self, files: Sequence[Path], given: ImageOptions | None, inputs: Signatures, where: str) -> None:
        if len(inputs) != 1:
            names = [signature.name for signature in inputs]
            raise DataError(f"a folder of images goes with a model of one input, got inputs {names}; in {where}")
        self._options = options = given or ImageOptions()
        self._frame = Frame.of(inputs[0], options, where)
        self.pixels_by_default = given is None and not self._frame.integer
        self.doubt = None if self._frame.integer else pixel_doubt(options, self._frame.channels)
        self._group = group_size(inputs) if len(inputs[0].shape) == 4 else 1
        groups = whole_groups(len(files), self._group, where)
        self._files = tuple(files[: groups * self._group])

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self._files) // self._group

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The images of each sample."""
        starts = range(0, len(self._files), self._group)
        return tuple(self._files[start : start + self._group] for start in starts)

    def read(self) -> Iterator[object]:
        """Yield the images, as many at a time as the model's batch."""
        for start in range(0, len(self._files), self._group):
            group = [load_image(path, self._options, self._frame) for path in self._files[start : start + self._group]]
            yield np.stack(group) if self._frame.batched else group[0]

    def digest(self, limit: int | None) -> Digest:
        """Return the digest of the files' bytes and of all that is done to them."""
        files = self._files if limit is None else self._files[: limit * self._group]
        content = tuple(fingerprint_file(path) for path in files)
        return fingerprint(("images", content, self._options, self._frame, self._group))


@dataclass(frozen=True)
class Frame:
    """Where an image has to fit.

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
    def of(cls, signature: InputSignature, options: ImageOptions, where: str) -> "Frame":
        """Return the frame of a model's input.

        Raises:
            DataError: If the input is no image, or its size is dynamic and not given.
        """
        rank = len(signature.shape)
        if rank not in (3, 4):
            raise DataError(f"images need an input of rank 3 or 4, got {describe(signature)}; in {where}")
        channels_first, channels = _channel_axis(signature, options, where)
        sides = signature.shape[-2:] if channels_first else signature.shape[-3:-1]
        height, width = options.size or sides
        if not isinstance(height, int) or not isinstance(width, int):
            raise DataError(
                f"the model's image size is dynamic, {describe(signature)}: give ImageOptions(size=(height, width)); "
                f"in {where}"
            )
        integer = signature.dtype == np.uint8
        if not integer and signature.dtype != np.float32:
            raise DataError(f"images need an input of float32 or uint8, got {describe(signature)}; in {where}")
        if integer and not options.keeps_pixels:
            raise DataError(
                f"the model takes uint8 pixels, so scale must be 1, mean 0 and std 1, got {options.scale}, "
                f"{options.mean} and {options.std}; in {where}"
            )
        if channels == 3:
            for field, values in (("mean", options.mean), ("std", options.std)):
                if len(values) not in (1, 3):
                    raise DataError(f"ImageOptions.{field} must have 1 or 3 values, got {values!r}; in {where}")
        return cls(height, width, channels, channels_first, integer, batched=rank == 4)


def _channel_axis(signature: InputSignature, options: ImageOptions, where: str) -> tuple[bool, int]:
    """Return whether channels come first, and how many there are."""
    first, last = signature.shape[-3], signature.shape[-1]
    looks_first = first in (1, 3) or last not in (1, 3)
    channels_first = looks_first if options.layout == "auto" else options.layout == "NCHW"
    channels = first if channels_first else last
    if not isinstance(channels, int):
        return channels_first, 3
    if channels not in (1, 3):
        raise DataError(f"images have 1 or 3 channels, got {describe(signature)} as {options.layout}; in {where}")
    return channels_first, channels


def load_image(path: Path, options: ImageOptions, frame: Frame) -> Array:
    """Return one image file as the model wants it, without batch axis.

    Raises:
        DataError: If the file cannot be decoded, or has more than 8 bits for each channel.
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
        # Pillow has cut off what is above 255.
        advice = "convert it as was done for training"
        raise DataError(f"an image must have 8 bits for each channel, got mode {mode!r}; {advice}; in {path}")
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
