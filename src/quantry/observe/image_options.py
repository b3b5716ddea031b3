"""How an image file becomes a model's input."""

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from quantry.errors import DataError, nearest_spelling

Layout = Literal["auto", "NCHW", "NHWC"]
Color = Literal["RGB", "BGR"]
Resize = Literal["stretch", "letterbox", "center-crop"]
PadPosition = Literal["end", "both"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class ImageOptions:
    """What is done to an image: decode, resize, pad or crop, then ``x = (pixel * scale - mean) / std``.

    Pixels are 0..255. Images are turned upright by their EXIF orientation. A model with one channel gets the
    luminance. Resizing averages over all source pixels when it shrinks, as Pillow does.

    Attributes:
        size: Height and width; None takes those of the model's input.
        mean: Subtracted for each channel, in the order of ``color``, after the scale.
        std: Divided by for each channel, in the order of ``color``.
        scale: Multiplied with the pixel first; ``1 / 255`` gives 0..1.
        layout: Order of the model's axes; "auto" takes the axis of length 1 or 3 for the channels.
        color: Order of the channels.
        resize: "stretch" ignores the aspect ratio; "letterbox" keeps it and pads; "center-crop" keeps it, fills the
            frame and cuts off what stands out.
        pad_value: Pixel value of the padding of "letterbox", before the scale.
        pad_position: Where "letterbox" pads: "end" is right or bottom, "both" centres the image.
        crop_fraction: Part of the resized short side that "center-crop" keeps; 0.875 is 224 of 256.
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

    def __new__(cls, *_: object, **given: object) -> "ImageOptions":
        """Refuse misspelt names with the nearest spelling, before the dataclass does in its own words."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                hint = nearest_spelling(name, cls.__dataclass_fields__)
                raise DataError(f"ImageOptions must be given known options, got {name!r}{hint}")
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
            raise DataError("ImageOptions.scale must not be zero, which leaves nothing of the image, got 0")
        if 0.0 in self.std:
            raise DataError(f"ImageOptions.std must not contain zero, got {self.std!r}")
        if not 0 <= self.pad_value <= 255:
            raise DataError(f"ImageOptions.pad_value must be a pixel value 0..255, got {self.pad_value!r}")
        if not 0 < self.crop_fraction <= 1:
            raise DataError(f"ImageOptions.crop_fraction must be in (0, 1], got {self.crop_fraction!r}")

    @property
    def keeps_pixels(self) -> bool:
        """Whether the arithmetic changes nothing, so that integer inputs can be fed."""
        return self.scale == 1.0 and not any(self.mean) and all(value == 1.0 for value in self.std)


def _numbers(field: str, given: object) -> tuple[float, ...]:
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    found = tuple(float(value) for value in values if isinstance(value, numbers.Real) and math.isfinite(value))
    if len(found) != len(values):
        raise DataError(f"ImageOptions.{field} must be finite numbers, one for each channel or side, got {given!r}")
    return found


def _check_number(field: str, given: object) -> None:
    if not isinstance(given, numbers.Real) or not math.isfinite(given):
        raise DataError(f"ImageOptions.{field} must be a finite number, got {given!r}")


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = nearest_spelling(str(value), choices)
        raise DataError(f"ImageOptions.{field} must be one of {list(choices)}, got {value!r}{hint}")
