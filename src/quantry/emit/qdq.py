"""Standard ONNX: QuantizeLinear and DequantizeLinear around float operators."""

import onnx_ir as ir

from quantry.emit.blocks import BlockWriter
from quantry.emit.float_writer import FloatWriter
from quantry.emit.fusion_barriers import flat_softmaxes, hide_float8_pairs, hide_softmaxes
from quantry.emit.graph_editor import GraphEditor, Origin
from quantry.emit.local_functions import QUARK, STANDARD, VITIS, Dialect, FunctionCollector
from quantry.emit.pairs import PairWriter
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Format, TensorSpec, VitisQdq


def emit_qdq(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> dict[str, Origin]:
    """Insert the Q/DQ pairs and the integer weights into the model, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: The tensors to quantize.
        params: Their scales and zero points.
        options: The format; it determines the dialect.

    Returns:
        By name of an initializer, the parameters its data was computed from. No other data depends on the parameters.
    """
    editor, view, flat = GraphEditor(model), QuantizedView(plan, params), flat_softmaxes(model, params)
    writers = _Writers(editor, view, dialect_of(options))
    for quantizer in view.activations:
        writers.of(quantizer.spec).write_pair(quantizer.name)
    for quantizer in view.conversions:
        editor.branch(quantizer.name, quantizer.tensor, quantizer.readers or ())
        writers.of(quantizer.spec).write_pair(quantizer.name)
    for quantizer in view.constants:
        writers.of(quantizer.spec).write_constant(quantizer.name, quantizer.readers)
    if any(spec.dtype.is_float8 for spec in plan.specs()):
        hide_float8_pairs(editor)
    if not isinstance(options, VitisQdq):
        hide_softmaxes(editor, flat)
    functions = FunctionCollector(model)
    writers.finish(functions)
    functions.finish()
    return writers.origins


class _Writers:
    """One writer per kind of number, created when first needed."""

    def __init__(self, editor: GraphEditor, view: QuantizedView, dialect: Dialect) -> None:
        self._editor = editor
        self._dialect = dialect
        self._integers = PairWriter(editor, view, dialect)
        self._others: dict[TensorSpec, FloatWriter | BlockWriter] = {}

    @property
    def origins(self) -> dict[str, Origin]:
        """By name of an initializer, the parameters its data was computed from."""
        return self._integers.origins

    def of(self, spec: TensorSpec) -> PairWriter | FloatWriter | BlockWriter:
        """Return the writer of a specification."""
        if spec.dtype.has_scale:
            return self._integers
        if spec not in self._others:
            extended = self._dialect is QUARK
            self._others[spec] = (
                BlockWriter(self._editor, spec)
                if spec.dtype.is_block
                else FloatWriter(self._editor, spec.dtype, extended=extended)
            )
        return self._others[spec]

    def finish(self, functions: FunctionCollector) -> None:
        """Register the functions of every writer."""
        for writer in (self._integers, *self._others.values()):
            writer.finish(functions)


def dialect_of(options: Format) -> Dialect:
    """Return the dialect of Q/DQ pairs that a format writes."""
    return VITIS[options.dialect] if isinstance(options, VitisQdq) else STANDARD
