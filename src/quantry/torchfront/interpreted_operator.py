"""Operators that are rare in trained graphs: computed by the interpreter of the tune stage."""

from typing import Any

import onnx_ir as ir
from torch import Tensor, nn

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.operators import OPERATORS


class InterpretedOperator(nn.Module):  # type: ignore[misc]
    """One operator with its attributes; constants among its inputs are tensors like any other."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        super().__init__()
        self.operator = node.op_type
        self._attributes = Attributes(node, opset)

    def forward(self, *inputs: Tensor | None) -> Any:
        """Return the operator's result, or a sequence of them."""
        return OPERATORS[self.operator](list(inputs), self._attributes)
