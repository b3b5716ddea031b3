"""All conversions in their order.

The conversions as a stage of their own.

A quantized model is compared with the float model as it was given, not with the converted one. Kept apart, the
conversions start from the same prepared model that serves as the reference.
"""

from collections.abc import Callable, Collection, Container

import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.prepare.npu.activations import clip, hard_sigmoid, leaky_relu, sigmoid_to_hard_sigmoid
from quantry.prepare.npu.batch_norm_to_conv import batch_norm_to_conv
from quantry.prepare.npu.pools import average_pool, reduce_mean, reduce_mean_to_pool, split_large_pool
from quantry.prepare.npu.split_to_slice import split_to_slice
from quantry.recipe import NpuConversions
from quantry.runtime.environment import depends_on

_CONVERSIONS: tuple[Callable[[ir.Model, Container[str]], tuple[str, ...]], ...] = (
    split_to_slice,
    batch_norm_to_conv,
    reduce_mean_to_pool,
    split_large_pool,
    leaky_relu,
    clip,
    sigmoid_to_hard_sigmoid,
    hard_sigmoid,
    average_pool,
    reduce_mean,
)
"""Each is named as its switch in `NpuConversions`; later ones see what earlier ones made, such as new pools."""


def convert_for_npu(model: ir.Model, options: NpuConversions, untouched: Collection[str] = ()) -> tuple[str, ...]:
    """Replace operators of the main graph by what the NPU computes in their place.

    Bodies of If and Loop are left alone: nothing in them is quantized, so they run elsewhere.

    Args:
        model: The model, edited in place; shapes of pooled tensors must have been inferred.
        options: Which conversions to make.
        untouched: Names of nodes to leave as they are.

    Returns:
        How many nodes each conversion changed, and which.
    """
    kept = frozenset(untouched)
    chosen = [conversion for conversion in _CONVERSIONS if getattr(options, conversion.__name__)]
    return tuple(note for conversion in chosen for note in conversion(model, kept))


@stage(name="convert", version=1, environment=depends_on("onnx", "onnx_ir"))
def convert(model: FloatModel, options: NpuConversions, untouched: tuple[str, ...] = ()) -> FloatModel:
    """Return the model with operators replaced by what the NPU computes in their place.

    Args:
        model: A prepared model.
        options: Which conversions to make.
        untouched: Names of nodes to leave as they are: what stays float does not run on the NPU.

    Returns:
        A new model, with notes on what each conversion changed.
    """
    copy = model.model.clone()
    notes = convert_for_npu(copy, options, untouched)
    remove_unused(copy)
    infer_shapes(copy)
    return FloatModel(rebuilt(copy), tuple(notes))
