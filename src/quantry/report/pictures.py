"""The images on which the float and the quantized model disagree most, with classes or boxes."""

import base64
import io
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.images import ImageSource
from quantry.errors import QuantryError
from quantry.evaluate.tasks import Decoder, Detections, find_decoder, overlaps
from quantry.quantization import QuantizationResult
from quantry.report.facts import Plain
from quantry.runtime.sessions import run_session, simulation_session

_LOG = logging.getLogger("quantry.report")

_IMAGES = 32
"""Images that both models run on: enough to find examples, and a few seconds on a CPU."""

_SHOWN = 8
_SIDE = 224
_SURE = 0.3
"""Score above which a detection is drawn."""

_SAME_BOX = 0.5
_SLIGHT = 0.01
"""Differences below it are not worth a picture."""


def changed_images(result: QuantizationResult, decoder: Decoder | str | None = None) -> tuple[Plain, ...]:
    """Return the evaluation images on which the models disagree most, worst first; empty if inputs are no images.

    Args:
        result: The result of `quantry.quantize`.
        decoder: Converts a detector's outputs to boxes; None takes the outputs for scores of classes.
    """
    data = result.evaluation_data.take(_IMAGES)
    shape = data.inputs[0].shape
    if len(data.inputs) != 1 or len(shape) != 4 or not {1, 3} & {shape[1], shape[3]}:
        return ()
    decode = find_decoder(decoder) if isinstance(decoder, str) else decoder
    float_session = simulation_session(result.stages.prepared.value.model, interleaved=True)
    quantized_session = simulation_session(result.model, interleaved=True)
    images = []
    for index, sample in enumerate(data):
        image = next(iter(sample.values()))
        ours, theirs = run_session(float_session, sample), run_session(quantized_session, sample)
        try:
            compared = _classes(ours, theirs) if decode is None else _boxes(ours, theirs, decode, _sides(image))
        except QuantryError as error:  # the model is good, only its outputs are not what the decoder expects
            _LOG.warning("the report shows no boxes: %s", error)
            return ()
        if compared is None:
            return ()
        images.append((compared[0], index, image, compared[1]))
    worst = sorted((entry for entry in images if entry[0] > _SLIGHT), key=lambda entry: -entry[0])[:_SHOWN]
    return tuple({**_picture(image, data.source, index), **facts} for _, index, image, facts in worst)


def _sides(image: NDArray[Any]) -> tuple[int, int]:
    sides = image.shape[2:] if image.shape[1] in (1, 3) else image.shape[1:3]
    return int(sides[0]), int(sides[1])


def _classes(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> tuple[float, Plain] | None:
    """Compare scores of classes; None if the first output has none."""
    name = next(iter(ours))
    if name not in theirs or ours[name].ndim < 2 or ours[name].size != ours[name].shape[1] or ours[name].size < 2:
        return None
    float_chances, quantized_chances = _chances(ours[name]), _chances(theirs[name])
    difference = float(np.abs(float_chances - quantized_chances).sum() / 2)
    decides_otherwise = float_chances.argmax() != quantized_chances.argmax()
    return difference + decides_otherwise, {
        "float": _class_text(float_chances),
        "quantized": _class_text(quantized_chances),
        "float_boxes": [],
        "quantized_boxes": [],
    }


def _chances(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return scores as probabilities, unless they already are."""
    values = np.nan_to_num(scores.astype(np.float64).ravel())
    if values.min() >= 0 and abs(values.sum() - 1) < 1e-2:
        return values
    exponents = np.exp(values - values.max())
    chances: NDArray[np.float64] = exponents / exponents.sum()
    return chances


def _class_text(chances: NDArray[np.float64]) -> str:
    return f"class {chances.argmax()} ({100 * chances.max():.0f} %)"


def _boxes(
    ours: dict[str, NDArray[Any]], theirs: dict[str, NDArray[Any]], decode: Decoder, sides: tuple[int, int]
) -> tuple[float, Plain]:
    """Compare detections: boxes that only one model has count 1, the others by how little they overlap."""
    float_objects, quantized_objects = (_sure(decode(outputs, sides)[0]) for outputs in (ours, theirs))
    shared = overlaps(float_objects.boxes, quantized_objects.boxes) * (
        float_objects.labels[:, None] == quantized_objects.labels[None, :]
    )
    difference = sum(
        1.0 - (best if best > _SAME_BOX else 0.0)
        for axis in (0, 1)
        for best in (shared.max(axis=axis) if shared.size else np.zeros(shared.shape[1 - axis]))
    )
    return float(difference), {
        "float": f"{len(float_objects.boxes)} objects",
        "quantized": f"{len(quantized_objects.boxes)} objects",
        "float_boxes": _drawn(float_objects, sides),
        "quantized_boxes": _drawn(quantized_objects, sides),
    }


def _sure(objects: Detections) -> Detections:
    keep = objects.scores > _SURE
    return Detections(objects.boxes[keep], objects.scores[keep], objects.labels[keep])


def _drawn(objects: Detections, sides: tuple[int, int]) -> list[Plain]:
    factor = _factor(sides)
    return [
        {
            "x": round(factor * box[0], 1),
            "y": round(factor * box[1], 1),
            "width": round(factor * max(box[2] - box[0], 0.0), 1),
            "height": round(factor * max(box[3] - box[1], 0.0), 1),
            "label": f"{label} {100 * score:.0f} %",
        }
        for box, score, label in zip(objects.boxes.tolist(), objects.scores, objects.labels, strict=True)
    ]


def _factor(sides: tuple[int, int]) -> float:
    return min(_SIDE / max(sides), 4.0)


def _picture(image: NDArray[Any], source: Any, index: int) -> Plain:
    """Return a sample as a small JPEG: the image as the model sees it, with the arithmetic on pixels undone."""
    from PIL import Image

    values = image[0].astype(np.float64)
    values = values.transpose(1, 2, 0) if image.shape[1] in (1, 3) else values
    if isinstance(source, ImageSource):
        options = source.options
        values = (values * np.array(options.std) + np.array(options.mean)) / options.scale
        values = values[..., ::-1] if options.color == "BGR" else values
        name = source.files[index][0].name
    else:
        # How numbers became pixels is unknown; stretching them to the whole range shows any image.
        values = (values - values.min()) / max(float(np.ptp(values)), 1e-12) * 255
        name = f"sample {index}"
    pixels = np.clip(np.round(values), 0, 255).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else np.ascontiguousarray(pixels))
    factor = _factor(pixels.shape[:2])
    width, height = (max(1, round(factor * side)) for side in picture.size)
    buffer = io.BytesIO()
    picture.convert("RGB").resize((width, height)).save(buffer, "JPEG", quality=72)
    return {
        "name": name,
        "width": width,
        "height": height,
        "jpeg": base64.b64encode(buffer.getvalue()).decode(),
    }
