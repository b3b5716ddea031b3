"""What a torch graph of a quantized model calls besides operators: tables, nodes with computed sizes, checks of inputs.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from quantry.errors import DataError
from quantry.execute.interpreter import TorchCall
from quantry.facts.operators import operators_where
from quantry.numerics.tensor_params import TensorParams
from quantry.runtime.sessions import run_session, simulation_session

TABULATED = operators_where(lambda row: row.torch and row.operands == 1 and row.homogeneous is False)
"""Functions of one tensor for which torch and onnxruntime may return different last bits."""


class LevelTable(nn.Module):  # type: ignore[misc]
    """A function of an 8-bit tensor as a lookup table with at most 256 entries, computed by onnxruntime.

    torch and onnxruntime compute Sigmoid with different polynomials. A value near the middle between two levels of the
    output would be rounded to either of them.

    Attributes:
        values: float32 [levels], the function of each level of the input, lowest level first.
    """

    def __init__(self, node: ir.Node, params: TensorParams, opset: int) -> None:
        super().__init__()
        levels = np.arange(params.lowest, params.highest + 1)
        inputs = (levels - int(params.zero_point)).astype(np.float32) * params.scale
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(inputs.shape))
        copy = ir.node(node.op_type, [x], attributes=dict(node.attributes))
        result = copy.outputs[0]
        result.name, result.type, result.shape = "y", x.type, x.shape
        graph = ir.Graph([x], [result], nodes=[copy], opset_imports={"": opset}, name="table")
        session = simulation_session(ir.Model(graph, ir_version=8), threads=1)
        self.register_buffer("values", torch.from_numpy(run_session(session, {"x": inputs})["y"]))
        self.register_buffer("scale", torch.tensor(params.scale))
        self._shift = int(params.zero_point) - params.lowest

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of quantized values."""
        return self.values[torch.round(x / self.scale).long() + self._shift]


class NodeCall(nn.Module):  # type: ignore[misc]
    """A node whose sizes or indices are computed while the model runs, or may be on another device than its data."""

    def __init__(self, call: TorchCall) -> None:
        super().__init__()
        self._call = call

    def forward(self, *inputs: Tensor | None) -> Any:
        """Return the result of the node for all its inputs."""
        device = next(
            (str(value.device) for value in inputs if value is not None and value.device.type != "cpu"), "cpu"
        )
        return self._call(self._call.on_device(inputs, device))


def is_tabulated(node: ir.Node, params: TensorParams | None) -> bool:
    """Return whether a node can be replaced by a lookup table."""
    return node.op_type in TABULATED and params is not None and params.axis is None and params.dtype.bits <= 8


def checked_input(value: Tensor, name: str, sizes: Sequence[int | None] | None) -> Tensor:
    """Return an input unchanged if it has the sizes that the graph was captured with.

    The graph contains numbers that the capture computed from the sizes of its example, such as the windows of pools.
    With other sizes it would silently compute something else than the user's model.

    Args:
        value: The input.
        name: Its name.
        sizes: The required sizes, None for dynamic ones; None if nothing is known.

    Raises:
        DataError: It is not a tensor, or has another rank or size.
    """
    if not isinstance(value, Tensor):
        raise DataError(f"input {name!r} must be a tensor, got {type(value).__name__}; in QuantizedModule")
    if sizes is None or (
        len(value.shape) == len(sizes)
        and all(required is None or required == actual for required, actual in zip(sizes, value.shape, strict=True))
    ):
        return value
    listed = ", ".join("any" if size is None else str(size) for size in sizes)
    raise DataError(
        f"input {name!r} must have the sizes it was captured with, [{listed}], got {list(value.shape)}; capture the "
        "model with dynamic_shapes for sizes that vary; in QuantizedModule"
    )


def checked_constant(value: object, captured: object, index: int) -> None:
    """Raise if an argument that is not a tensor differs from the captured one, which is a constant of the graph.

    Args:
        value: The argument.
        captured: Its value at the capture.
        index: Its position among the arguments.

    Raises:
        DataError: The values differ.
    """
    if type(value) is not type(captured) or value != captured:
        raise DataError(
            f"argument {index} must be what it was at the capture, {captured!r}, got {value!r}; capture the model "
            "again with the new value; in QuantizedModule"
        )
