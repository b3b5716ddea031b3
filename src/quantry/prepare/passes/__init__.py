"""Graph passes: each one file, each a function that edits a model in place, keeps its outputs and says what it did."""

from quantry.prepare.passes.clip6_to_relu import clip6_to_relu
from quantry.prepare.passes.convert_opset import convert_opset, ir_version_for
from quantry.prepare.passes.float16_to_float32 import check_float_type, float16_to_float32
from quantry.prepare.passes.fold_batch_norm import fold_batch_norm
from quantry.prepare.passes.fold_constants import fold_constants
from quantry.prepare.passes.forget_placeholders import forget_placeholders
from quantry.prepare.passes.infer_shapes import infer_shapes
from quantry.prepare.passes.inline_constant_if import inline_constant_if
from quantry.prepare.passes.inputs_without_initializers import inputs_without_initializers
from quantry.prepare.passes.name_nodes import name_nodes
from quantry.prepare.passes.remove_identities import remove_identities
from quantry.prepare.passes.remove_unused import remove_unused
from quantry.prepare.passes.sort_nodes import sort_nodes
from quantry.prepare.passes.split_shared_weights import split_shared_weights

__all__ = [
    "check_float_type",
    "clip6_to_relu",
    "convert_opset",
    "float16_to_float32",
    "fold_batch_norm",
    "fold_constants",
    "forget_placeholders",
    "infer_shapes",
    "inline_constant_if",
    "inputs_without_initializers",
    "ir_version_for",
    "name_nodes",
    "remove_identities",
    "remove_unused",
    "sort_nodes",
    "split_shared_weights",
]
