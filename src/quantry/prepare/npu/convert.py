"""The stage "convert": replace operators by what an integer NPU computes in their place.

It is separate from "prepare" because a quantized model is compared with the float model as the user gave it: the
conversions start from the same prepared model that is the reference of the comparison.
"""

from collections.abc import Callable, Collection, Container

import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.notes import Note
from quantry.prepare.npu.operators import (
    batch_norm_to_conv,
    clip,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    sigmoid_to_hard_sigmoid,
    split_to_slice,
)
from quantry.prepare.npu.pools import average_pool, reduce_mean, reduce_mean_to_pool, split_large_pool
from quantry.recipe import NpuConversions
from quantry.runtime.environment import depends_on

_CONVERSIONS: tuple[Callable[[ir.Model, Container[str]], tuple[Note, ...]], ...] = (
    split_to_slice,
    batch_norm_to_conv,
    reduce_mean_to_pool,
    split_large_pool,
    leaky_relu,
    clip,
    hard_swish,
    sigmoid_to_hard_sigmoid,
    hard_sigmoid,
    average_pool,
    reduce_mean,
)
"""Each has the name of its field in `NpuConversions`. Later ones see what earlier ones added, such as new pools."""


def convert_for_npu(model: ir.Model, options: NpuConversions, untouched: Collection[str] = ()) -> tuple[Note, ...]:
    """Replace operators of the main graph by what the NPU computes in their place.

    Bodies of If and Loop are not changed here: the pipeline converts them as models of their own.

    Args:
        model: The model, edited in place; shapes of pooled tensors must have been inferred.
        options: Which conversions to apply.
        untouched: Names of nodes not to change.

    Returns:
        One note per conversion: how many nodes it changed, and which.
    """
    float_nodes = frozenset(untouched)
    conversions = [conversion for conversion in _CONVERSIONS if getattr(options, conversion.__name__)]
    return tuple(note for conversion in conversions for note in conversion(model, float_nodes))


@stage(name="convert", version=2, environment=depends_on("onnx", "onnx_ir"))
def convert(model: FloatModel, options: NpuConversions, untouched: tuple[str, ...] = ()) -> FloatModel:
    """Return the model with operators replaced by what the NPU computes in their place.

    Args:
        model: A prepared model.
        options: Which conversions to apply.
        untouched: Names of nodes not to change: nodes that stay float do not run on the NPU.

    Returns:
        A new model, with notes on what each conversion changed.
    """
    copy = model.model.clone()
    notes = convert_for_npu(copy, options, untouched)
    remove_unused(copy)
    infer_shapes(copy)
    return FloatModel(rebuilt(copy), notes)
