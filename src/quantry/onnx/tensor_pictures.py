"""Histograms of weights and activations as pictures, as `save_weights_hist` and `save_tensor_hist` write them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from quantry.errors import DataError
from quantry.files import new_file
from quantry.graph.edit import constant_of
from quantry.onnx.data_readers import RandomDataReader
from quantry.runtime.sessions import run_session, simulation_session

_SIZE = (640, 360)
_MARGIN = 40
_BINS = 100


def save_weights_hist(model: ir.Model, output_path: str = "weights_hist") -> list[Path]:
    """Write a histogram of each float weight with more than one value and return the files.

    Args:
        model: The model.
        output_path: The folder.
    """
    arrays = {str(value.name): constant_of(value) for value in model.graph.initializers.values()}
    return _pictures({name: array for name, array in arrays.items() if array is not None}, Path(output_path))


def save_tensor_hist(model: ir.Model, data_path: str = "", output_path: str = "tensor_hist") -> list[Path]:
    """Write a histogram of each float tensor that a model computes and return the files.

    Args:
        model: The model; with a folder of data, one that has one input.
        data_path: A folder of ``.npy`` files, each with a batch; empty takes a random sample.
        output_path: The folder.
    """
    values = [value for node in model.graph for value in node.outputs if value.name]
    present = set(model.graph.outputs)
    model.graph.outputs.extend(value for value in values if value not in present)
    session = simulation_session(model)
    arrays: dict[str, list[NDArray[Any]]] = {}
    for sample in _samples(model, data_path):
        for name, array in run_session(session, sample).items():
            arrays.setdefault(name, []).append(np.asarray(array).ravel())
    return _pictures({name: np.concatenate(arrays) for name, arrays in arrays.items()}, Path(output_path))


def _samples(model: ir.Model, data_path: str) -> list[dict[str, NDArray[Any]]]:
    if not data_path:
        reader = RandomDataReader(ir.serde.serialize_model(model))
        sample = reader.get_next()
        return [] if sample is None else [dict(sample)]
    files = sorted(Path(data_path).glob("*.npy"))
    if not files:
        raise DataError(f"--data_path must be a folder of .npy files, got none in {data_path}")
    name = str(model.graph.inputs[0].name)
    return [{name: np.load(file)} for file in files]


def _pictures(arrays: Mapping[str, NDArray[Any]], folder: Path) -> list[Path]:
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f" and array.size > 1}
    if not floats:
        raise DataError("the model must have float tensors with more than one value, got none")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, array in floats.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.png"
        with new_file(path) as file:
            _picture(name, array.astype(np.float64).ravel()).save(file, "PNG")
        files.append(path)
    return files


def _picture(name: str, values: NDArray[np.float64]) -> Image.Image:
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, _BINS)
    image = Image.new("RGB", _SIZE, "white")
    draw = ImageDraw.Draw(image)
    width, height = _SIZE[0] - 2 * _MARGIN, _SIZE[1] - 2 * _MARGIN
    floor = _SIZE[1] - _MARGIN
    for index, count in enumerate(counts):
        start = _MARGIN + index * width / _BINS
        top = floor - height * count / max(int(counts.max()), 1)
        draw.rectangle((start, top, start + width / _BINS - 1, floor), fill="steelblue")
    draw.line((_MARGIN, floor, _SIZE[0] - _MARGIN, floor), fill="black")
    draw.text((_MARGIN, 10), f"{name}: {values.size} values, mean {finite.mean():.4g}, std {finite.std():.4g}", "black")
    draw.text((_MARGIN, floor + 8), f"{edges[0]:.4g}", "black")
    draw.text((_SIZE[0] - _MARGIN - 60, floor + 8), f"{edges[-1]:.4g}", "black")
    return image
