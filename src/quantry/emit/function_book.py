"""The model-local functions of one model while it is written."""

import onnx_ir as ir

from quantry.emit.local_function import add_function

_FIRST_IR_WITH_OVERLOADS = 10


class FunctionBook:
    """Collects which vendor operator needs which body, and adds the functions at the end.

    Number formats share operator names: ExtendedQuantizeLinear makes int8, int32 or bfloat16, as its zero point says,
    but the body of a function has fixed types. A model that needs several bodies of one name gets one overload for
    each; the body with the empty kind never has one, and neither has the only body of its name.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._bodies: dict[tuple[str, str], dict[str, str]] = {}
        self._readers: list[tuple[ir.Node, str]] = []

    def use(self, node: ir.Node, text: str, kind: str = "") -> None:
        """Note that a node is defined by a function.

        Args:
            node: The node, in the vendor's domain.
            text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
            kind: Names the body among those of the same operator.
        """
        self._bodies.setdefault((node.domain, node.op_type), {})[kind] = text
        self._readers.append((node, kind))

    def finish(self) -> None:
        """Add the functions to the model."""
        overloads = {
            (*operator, kind): "" if len(kinds) == 1 else kind
            for operator, kinds in self._bodies.items()
            for kind in kinds
        }
        for node, kind in self._readers:
            node.overload = overloads[(node.domain, node.op_type, kind)]
        for (domain, op_type), kinds in self._bodies.items():
            for kind, text in kinds.items():
                add_function(self._model, domain, text, overloads[(domain, op_type, kind)])
        if any(overloads.values()):
            self._model.ir_version = max(self._model.ir_version, _FIRST_IR_WITH_OVERLOADS)
