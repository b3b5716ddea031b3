"""All conversions in their order."""

from collections.abc import Callable, Collection, Container

import onnx_ir as ir

from quantry.prepare.npu.average_pool import average_pool
from quantry.prepare.npu.batch_norm_to_conv import batch_norm_to_conv
from quantry.prepare.npu.clip import clip
from quantry.prepare.npu.hard_sigmoid import hard_sigmoid
from quantry.prepare.npu.leaky_relu import leaky_relu
from quantry.prepare.npu.reduce_mean import reduce_mean
from quantry.prepare.npu.reduce_mean_to_pool import reduce_mean_to_pool
from quantry.prepare.npu.sigmoid_to_hard_sigmoid import sigmoid_to_hard_sigmoid
from quantry.prepare.npu.split_large_pool import split_large_pool
from quantry.prepare.npu.split_to_slice import split_to_slice
from quantry.recipe import NpuConversions

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
