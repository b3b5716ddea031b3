"""Are the colour order and the pixel values of images those that the model was trained on?

A trained model is certain about what it was trained on, and not equally certain of the same thing about every image.
For class scores both are one number, the information that an output has about which image was shown::

    mean over images of KL(p(class | image) || mean of p(class | image) over images)

It falls with a wrong colour order, because the model becomes less certain, and with a wrong scale, because then one
class wins everywhere. For maps, such as the outputs of detectors, it is the mean of the highest probabilities of each
image; values of a wrong scale that saturate all of them say nothing and are ignored. The arithmetic that was given and
the usual alternatives are compared on the same images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import Color, ImageOptions, ImageSource, scale_text
from quantry.evaluate.decisions import score_rows
from quantry.facts.operators import CONVOLUTIONS
from quantry.runtime.sessions import run_session, simulation_session

IMAGES = 16
"""Images that alternatives are compared on: a wrong colour order shows in about 8."""

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE = (123.68, 116.779, 103.939)

# What models are trained on, for RGB: scale, mean and standard deviation.
_ARITHMETIC: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "0..255": (1.0, (0.0,) * 3, (1.0,) * 3),
    "0..1": (1 / 255, (0.0,) * 3, (1.0,) * 3),
    "-1..1": (1 / 127.5, (1.0,) * 3, (1.0,) * 3),
    "0..1 minus ImageNet's mean, divided by its deviation": (1 / 255, *_IMAGENET),
    "0..255 minus ImageNet's mean": (1.0, _CAFFE, (1.0,) * 3),
}

_FEWEST = 4
_HIGHEST = 5
_SATURATED = 0.995

# An alternative must be better by this share, and by this many standard errors of the difference on the same images.
_BETTER_SHARE = 0.02
_BETTER_ERRORS = 2.5

# Orders of magnitude between what the first layer computes from the pixels and its bias.
_FAR = 1.5
_FAR_CREDIT = 0.7


@dataclass(frozen=True)
class PixelChoice:
    """One way to turn pixels into inputs.

    Attributes:
        label: Colour order and values, in words.
        options: The same as options.
        certainty: How certain the outputs are with it; higher is better. See above.
        first_layer: Decimal logarithm of how much the first layer's results vary compared with its biases; far from 0
            where the pixel values are of another order of magnitude than those in training. None without a bias.
    """

    label: str
    options: ImageOptions
    certainty: float
    first_layer: float | None
    per_image: NDArray[np.float64] = field(repr=False, compare=False)

    @property
    def credit(self) -> float:
        """The certainty, less if the pixels are of another order of magnitude than the first layer expects.

        Scores grow with the pixels, so far too large ones make outputs a little more certain than right ones.
        """
        return self.certainty * (_FAR_CREDIT if _is_far(self.first_layer) else 1.0)


@dataclass(frozen=True)
class PixelCheck:
    """How the given pixel arithmetic compares with the usual alternatives.

    Attributes:
        current: What was used.
        alternatives: All others, best first.
        better: The best alternative, if it is clearly better than what was given; else None.
        images: Number of images.
    """

    current: PixelChoice
    alternatives: tuple[PixelChoice, ...]
    better: PixelChoice | None
    images: int


def command_line(options: ImageOptions) -> str:
    """Return the options of the command line for colours and pixel values.

    Example:
        >>> command_line(ImageOptions(scale=1 / 255))
        '--color RGB --pixel-scale 1/255'
    """
    mean, std = (",".join(f"{value:g}" for value in values) for values in (options.mean, options.std))
    words = [f"--color {options.color}", f"--pixel-scale {scale_text(options.scale)}"]
    words += [f"--mean {mean}"] if any(options.mean) else []
    words += [f"--std {std}"] if any(value != 1 for value in options.std) else []
    return " ".join(words)


def check_pixels(model: ir.Model, data: CalibrationData, images: int = IMAGES) -> PixelCheck | None:
    """Compare the pixel arithmetic of images with the usual alternatives.

    Args:
        model: The float model.
        data: The calibration data.
        images: Maximum number of images.

    Returns:
        None if the data are not colour images, there are fewer than 4, or the outputs hold no scores.
    """
    source = data.source
    if not isinstance(source, ImageSource) or source.frame.integer or source.frame.channels != 3:
        return None
    plain = replace(source.options, color="RGB", scale=1.0, mean=(0.0,), std=(1.0,))
    pixels = [*source.read_as(plain, min(images, data.size or images))]
    if len(pixels) < _FEWEST:
        return None
    runner = _Runner(model, data, channels_first=source.frame.channels_first)
    choices = [
        PixelChoice(label, options, float(certainty.mean()), ratio, certainty)
        for label, options in _alternatives(source.options)
        if (result := runner.measure(pixels, options)) is not None
        for certainty, ratio in (result,)
    ]
    if not choices or choices[0].options != source.options:
        return None
    current, ranked = choices[0], sorted(choices[1:], key=lambda choice: -choice.credit)
    better = ranked[0] if ranked and _is_better(ranked[0], current) else None
    return PixelCheck(current, tuple(ranked), better, len(pixels))


def _alternatives(options_now: ImageOptions) -> Iterator[tuple[str, ImageOptions]]:
    """Yield what was given, then the usual alternatives."""
    yield f"{options_now.color}, as given", options_now
    opposite: Color = "BGR" if options_now.color == "RGB" else "RGB"
    # Mean and deviation are in the order of the colours, so they turn round with them.
    swapped = replace(options_now, color=opposite, mean=options_now.mean[::-1], std=options_now.std[::-1])
    yield f"{opposite}, otherwise as given", swapped
    for label, (scale, mean, std) in _ARITHMETIC.items():
        for color in get_args(Color):
            step = 1 if color == "RGB" else -1
            options = replace(options_now, color=color, scale=scale, mean=mean[::step], std=std[::step])
            if not any(_same(options, earlier) for earlier in (options_now, swapped)):
                yield f"{color}, {label}", options


def _same(first: ImageOptions, second: ImageOptions) -> bool:
    ends = [
        (np.array([[0], [255]]) * options.scale - np.array(options.mean)) / np.array(options.std)
        for options in (first, second)
    ]
    return first.color == second.color and np.allclose(ends[0], ends[1], atol=0.02)


class _Runner:
    """Runs the float model and its first layer on pixels."""

    def __init__(self, model: ir.Model, data: CalibrationData, *, channels_first: bool) -> None:
        self._name, self._first = data.inputs[0].name, channels_first
        copy = model.clone()
        self._outputs = [value.name for value in copy.graph.outputs]
        layer = next((node for node in copy.graph if node.op_type in CONVOLUTIONS), None)
        bias = layer.inputs[2].const_value if layer is not None and len(layer.inputs) > 2 and layer.inputs[2] else None
        self._bias = None if bias is None else np.abs(bias.numpy().astype(np.float64))
        self._layer = None
        if layer is not None and self._bias is not None and layer.outputs[0].name not in self._outputs:
            self._layer = layer.outputs[0].name
            copy.graph.outputs.append(layer.outputs[0])
        self._session = simulation_session(copy, interleaved=True)

    def measure(
        self, pixels: Sequence[NDArray[np.float32]], options: ImageOptions
    ) -> tuple[NDArray[np.float64], float | None] | None:
        """Return how certain the outputs are of each image, and the ratio of the first layer; None without scores."""
        results = [run_session(self._session, {self._name: self._input(entry, options)}) for entry in pixels]
        outputs = [[np.asarray(entry[name or ""], np.float64) for name in self._outputs] for entry in results]
        ratio = self._ratio(results)
        certainty = _certainty(outputs, is_far=_is_far(ratio))
        return None if certainty is None else (certainty, ratio)

    def _ratio(self, results: list[dict[str, NDArray[Any]]]) -> float | None:
        if self._layer is None or self._bias is None:
            return None
        rows = [np.moveaxis(result[self._layer], 1, 0).reshape(len(self._bias), -1) for result in results]
        varies = np.concatenate(rows, axis=1).std(axis=1)
        return float(np.median(np.log10((varies + 1e-9) / (self._bias + 1e-9))))

    def _input(self, pixels: NDArray[np.float32], options: ImageOptions) -> NDArray[np.float32]:
        axis = -3 if self._first else -1
        ordered = np.flip(pixels, axis) if options.color == "BGR" else pixels
        shape = (-1, 1, 1) if self._first else (-1,)
        mean, std = (np.asarray(values, np.float32).reshape(shape) for values in (options.mean, options.std))
        return ((ordered * np.float32(options.scale) - mean) / std).astype(np.float32)


def _is_far(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio) > _FAR


def _certainty(outputs: list[list[NDArray[np.float64]]], *, is_far: bool) -> NDArray[np.float64] | None:
    """Return one number per image; None if no output holds scores.

    Args:
        outputs: The outputs of each image.
        is_far: Whether pixels are far from what the first layer expects: then saturated probabilities say nothing.
    """
    for index in range(len(outputs[0])):
        rows = [score_rows(sample[index]) for sample in outputs]
        if all(row is not None for row in rows):
            return _information(np.concatenate([row for row in rows if row is not None]))
    maps = [
        np.concatenate([_probabilities(output) for output in sample if output.ndim > 2] or [np.zeros(0)])
        for sample in outputs
    ]
    if any(len(values) < _HIGHEST for values in maps):
        return None
    highest = np.array([np.sort(values)[-_HIGHEST:].mean() for values in maps])
    return np.zeros_like(highest) if is_far and (highest > _SATURATED).all() else highest


def _information(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row how much its distribution of classes differs from that of all rows, in nats."""
    if not ((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3)):
        rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
    rows = np.maximum(rows, 1e-12)
    result: NDArray[np.float64] = (rows * np.log(rows / rows.mean(axis=0))).sum(axis=1)
    return result


def _probabilities(output: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each position of a map the highest product of its first and another probability, if it has any.

    Channels with values between 0 and 1 are taken for probabilities. In a detector's output the first of them says
    whether there is an object, and the others which one.
    """
    axis = max(
        range(1, output.ndim),
        key=lambda axis_index: _unit_channels(output, axis_index).sum() / output.shape[axis_index],
    )
    is_unit = _unit_channels(output, axis)
    if not is_unit.any():
        return np.zeros(0)
    values = np.moveaxis(output, axis, -1)[..., is_unit].reshape(-1, int(is_unit.sum()))
    highest: NDArray[np.float64] = values[:, 0] * values[:, 1:].max(axis=1) if values.shape[1] > 1 else values[:, 0]
    return highest


def _unit_channels(output: NDArray[np.float64], axis: int) -> NDArray[np.bool_]:
    axes = tuple(index for index in range(output.ndim) if index != axis)
    result: NDArray[np.bool_] = (output.min(axis=axes) >= 0) & (output.max(axis=axes) <= 1)
    return result


def _is_better(choice: PixelChoice, current: PixelChoice) -> bool:
    difference = choice.per_image - current.per_image
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    mean = float(difference.mean())
    return mean > _BETTER_SHARE * max(current.certainty, 1e-6) and mean > _BETTER_ERRORS * error
