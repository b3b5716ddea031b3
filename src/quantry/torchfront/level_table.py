"""A function of a quantized tensor as the table of its values.

A tensor of 8 bits has 256 values, so that a function of it has no more. In a final module the table comes from
onnxruntime itself: torch and onnxruntime compute Sigmoid with different polynomials, and a value that lies next to the
middle between two levels would fall to either side.
"""

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from quantry.graph.operators import operators_where
from quantry.numerics.tensor_params import TensorParams
from quantry.runtime.sessions import run_session, simulation_session

TABULATED = operators_where(lambda row: row.torch and row.operands == 1 and row.homogeneous is False)
"""Functions of one tensor that the two libraries may round differently."""


class LevelTable(nn.Module):  # type: ignore[misc]
    """Looks a function's values up.

    Attributes:
        values: float32 [levels], the function of each level of the input, lowest first.
    """

    def __init__(self, node: ir.Node, params: TensorParams, opset: int) -> None:
        super().__init__()
        levels = np.arange(params.lowest, params.highest + 1)
        inputs = (levels - int(params.zero_point)).astype(np.float32) * params.scale
        self.register_buffer("values", torch.from_numpy(_computed(node, inputs, opset)))
        self.register_buffer("scale", torch.tensor(params.scale))
        self._shift = int(params.zero_point) - params.lowest

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of values that lie on the grid."""
        return self.values[torch.round(x / self.scale).long() + self._shift]


def is_tabulated(node: ir.Node, params: TensorParams | None) -> bool:
    """Whether a node's values can be looked up."""
    return node.op_type in TABULATED and params is not None and params.axis is None and params.dtype.bits <= 8


def _computed(node: ir.Node, inputs: np.ndarray, opset: int) -> np.ndarray:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(inputs.shape))
    copy = ir.node(node.op_type, [x], attributes=dict(node.attributes))
    result = copy.outputs[0]
    result.name, result.type, result.shape = "y", x.type, x.shape
    graph = ir.Graph([x], [result], nodes=[copy], opset_imports={"": opset}, name="table")
    session = simulation_session(ir.Model(graph, ir_version=8), threads=1)
    return run_session(session, {"x": inputs})["y"]
