"""Where Relu took the place of Clip(0, 6): what a teacher must cut off again.

Equalization passes Relu and multiplies channels before it, which Clip would not let it do::

    user's model:  y = min(relu(x), 6)          quantized model:  relu(f x) = f relu(x)
    teacher:       f y = min(relu(f x), 6 f)

The factor f of each channel is seen by running both models, from before equalization and from behind it, on one sample:
several steps may have had a part in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.memo import Memo
from quantry.pipeline import run_convert, run_prepare
from quantry.recipe import Recipe
from quantry.runtime.sessions import run_session, simulation_session
from quantry.torchfront.conversions import Original

_HIGH = 6.0
_TOLERANCE = 1e-3

Array = npt.NDArray[np.float32]


def cut_off_nodes(
    source: ir.Model, final: FloatModel, recipe: Recipe, memo: Memo, data: Callable[[], CalibrationData]
) -> tuple[dict[str, Original], tuple[str, ...]]:
    """Return the nodes that were Clip(0, 6), with what they cut off in the equalized model, and notes.

    Args:
        source: The model as it came.
        final: The model that is quantized.
        recipe: What was asked for.
        memo: Keeps and finds results.
        data: Opens the calibration data; called only where there is such a node.
    """
    cross_layer = recipe.equalize.cross_layer
    if not recipe.prepare.clip6_to_relu and not (cross_layer is not None and cross_layer.clip6_to_relu):
        return {}, ()
    clipped = _prepared(source, recipe, memo, clip6_to_relu=False).value
    relus = {node.name or "": node for node in final.model.graph if node.op_type == "Relu"}
    names = [node.name or "" for node in clipped.model.graph if node.op_type == "Clip" and node.name in relus]
    if not names:
        return {}, ()
    before = run_convert(_prepared(source, recipe, memo, clip6_to_relu=True), recipe, memo).value
    feeds = next(iter(data()))
    pairs = zip(_read(before, names, feeds), _read(final, names, feeds), strict=True)
    limits = {name: _limit(*pair) for name, pair in zip(names, pairs, strict=True)}
    found = {name: Original("Clip", limit=limit) for name, limit in limits.items() if limit is not None}
    lost = len(names) - len(found)
    note = f"{lost} Clip(0, 6) stay Relu in the float teacher: equalization did more to their channels than multiply"
    return found, (note,) if lost else ()


def _prepared(source: ir.Model, recipe: Recipe, memo: Memo, *, clip6_to_relu: bool) -> Any:
    return run_prepare(
        model_source(source), replace(recipe, prepare=replace(recipe.prepare, clip6_to_relu=clip6_to_relu)), memo
    )


def _read(model: FloatModel, names: list[str], feeds: Mapping[str, Any]) -> list[Array]:
    """Return what nodes read when a model runs on a sample."""
    copy = model.model.clone()
    nodes = {node.name or "": node for node in copy.graph}
    values = [nodes[name].inputs[0] for name in names]
    copy.graph.outputs.clear()
    copy.graph.outputs.extend({id(value): value for value in values if value is not None}.values())
    for value in copy.graph.outputs:
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    found = run_session(simulation_session(copy), feeds)
    return [found[value.name or ""] for value in values if value is not None]


def _limit(before: Array, after: Array) -> Array | None:
    """Return what is cut off behind the equalized values, along the channels, or None where these are not multiples."""
    if before.shape != after.shape:
        return None
    for axis in dict.fromkeys((min(1, before.ndim - 1), before.ndim - 1)):
        others = tuple(index for index in range(before.ndim) if index != axis)
        energy = np.sum(before * before, axis=others, keepdims=True)
        product = np.sum(before * after, axis=others, keepdims=True)
        factor = np.divide(product, energy, out=np.ones_like(product), where=energy > 0)
        if np.abs(after - factor * before).max() <= _TOLERANCE * np.abs(after).max():
            return np.asarray(_HIGH * factor, np.float32)
    return None
