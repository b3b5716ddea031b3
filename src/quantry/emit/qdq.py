"""Standard ONNX: QuantizeLinear and DequantizeLinear around float operators."""

import onnx_ir as ir

from quantry.emit.blocks import BlockWriter
from quantry.emit.float_writer import FloatWriter
from quantry.emit.graph_editor import GraphEditor, Origin
from quantry.emit.local_functions import QUARK, STANDARD, VITIS, Dialect, FunctionBook
from quantry.emit.pairs import PairWriter
from quantry.graph.quant_plan import OwnBiasPlan, QuantPlan, SharedRange
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Format, TensorSpec, VitisQdq

_INTEGER = TensorSpec()  # a bias on the accumulator's grid is an integer whatever else the plan says


def emit_qdq(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> dict[str, Origin]:
    """Insert the pairs and the integer weights into the model, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: Which tensors.
        params: With which scales and zero points.
        options: The format; decides the dialect.

    Returns:
        By name of an initializer, which parameters its data were made of. No other data depend on the parameters.
    """
    editor = GraphEditor(model)
    writers = _Writers(editor, plan, params, dialect_of(options))
    for tensor in plan.activations:
        root = plan.activations[plan.root(tensor)]
        assert not isinstance(root, SharedRange)
        writers.of(root.spec).write_pair(tensor)
    for name, conversion in plan.conversions.items():
        editor.branch(name, conversion.tensor, conversion.readers)
        writers.of(conversion.spec).write_pair(name)
    for name, weight in plan.weights.items():
        writers.of(weight.spec).write_constant(name, frozenset(weight.users))
    for name, bias in plan.biases.items():
        writers.of(bias.spec if isinstance(bias, OwnBiasPlan) else _INTEGER).write_constant(name, None)
    functions = FunctionBook(model)
    writers.finish(functions)
    functions.finish()
    return writers.origins


class _Writers:
    """One writer for each kind of number, made when it is first needed."""

    def __init__(self, editor: GraphEditor, plan: QuantPlan, params: QuantParams, dialect: Dialect) -> None:
        self._editor = editor
        self._dialect = dialect
        self._integers = PairWriter(editor, plan, params, dialect)
        self._others: dict[TensorSpec, FloatWriter | BlockWriter] = {}

    @property
    def origins(self) -> dict[str, Origin]:
        """By name of an initializer, which parameters its data were made of."""
        return self._integers.origins

    def of(self, spec: TensorSpec) -> PairWriter | FloatWriter | BlockWriter:
        """Return the writer of a specification."""
        if spec.dtype.is_integer:
            return self._integers
        if spec not in self._others:
            extended = self._dialect is QUARK
            self._others[spec] = (
                BlockWriter(self._editor, spec)
                if spec.dtype.is_block
                else FloatWriter(self._editor, spec.dtype, extended=extended)
            )
        return self._others[spec]

    def finish(self, functions: FunctionBook) -> None:
        """Let every writer note its functions."""
        for writer in (self._integers, *self._others.values()):
            writer.finish(functions)


def dialect_of(options: Format) -> Dialect:
    """Return the dialect of Q/DQ pairs that a format writes."""
    return VITIS[options.dialect] if isinstance(options, VitisQdq) else STANDARD
