"""Graph passes, one file each: functions that edit a model in place, preserve its outputs and return notes."""

from quantry.graph.passes.average_pool_to_conv import average_pool_to_conv
from quantry.graph.passes.clip6_to_relu import clip6_to_relu
from quantry.graph.passes.convert_opset import convert_opset, ir_version_for
from quantry.graph.passes.explicit_attributes import explicit_attributes
from quantry.graph.passes.fix_dimensions import fix_dimensions
from quantry.graph.passes.float16 import check_float_type, float16_to_float32, float32_to_bfloat16, float32_to_float16
from quantry.graph.passes.fold_batch_norm import fold_batch_norm
from quantry.graph.passes.fold_constants import fold_constants
from quantry.graph.passes.fold_pads import fold_pads
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.inline_constant_if import inline_constant_if
from quantry.graph.passes.lift_body_weights import lift_body_weights
from quantry.graph.passes.remove_identities import remove_identities
from quantry.graph.passes.split_shared_weights import split_shared_weights
from quantry.graph.passes.tidy import (
    forget_placeholders,
    inputs_without_initializers,
    name_nodes,
    remove_unused,
    sort_nodes,
)

__all__ = [
    "average_pool_to_conv",
    "check_float_type",
    "clip6_to_relu",
    "convert_opset",
    "explicit_attributes",
    "fix_dimensions",
    "float16_to_float32",
    "float32_to_bfloat16",
    "float32_to_float16",
    "fold_batch_norm",
    "fold_constants",
    "fold_pads",
    "forget_placeholders",
    "infer_shapes",
    "inline_constant_if",
    "inputs_without_initializers",
    "ir_version_for",
    "lift_body_weights",
    "name_nodes",
    "remove_identities",
    "remove_unused",
    "sort_nodes",
    "split_shared_weights",
]
