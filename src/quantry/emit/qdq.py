"""Standard ONNX: QuantizeLinear and DequantizeLinear around float operators."""

import onnx_ir as ir

from quantry.emit.dialect import STANDARD, VITIS, Dialect
from quantry.emit.graph_editor import GraphEditor
from quantry.emit.pairs import PairWriter
from quantry.plan import QuantPlan
from quantry.recipe import Format, VitisQdq
from quantry.scale import QuantParams


def emit_qdq(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> None:
    """Insert the pairs and the integer weights into the model, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: Which tensors.
        params: With which scales and zero points.
        options: The format; decides the dialect.
    """
    writer = PairWriter(GraphEditor(model), plan, params, dialect_of(options))
    for tensor in plan.activations:
        writer.write_pair(tensor)
    for name, weight in plan.weights.items():
        writer.write_constant(name, frozenset(weight.users))
    for name in plan.biases:
        writer.write_constant(name, None)
    writer.finish()


def dialect_of(options: Format) -> Dialect:
    """Return the dialect of Q/DQ pairs that a format writes."""
    return VITIS[options.dialect] if isinstance(options, VitisQdq) else STANDARD
