"""If, Loop and Scan as torch modules: their graphs use parameters and quantizers of the enclosing module."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, fx, nn

from quantry.graph.bodies import body_of, outer_values, state_count
from quantry.graph.edit import int_of


class ControlFlow(nn.Module):  # type: ignore[misc]
    """A node with graphs inside.

    Args:
        node: The node.
        graphs: Its graphs; the last arguments of each are tensors of the enclosing graph.
    """

    def __init__(self, node: ir.Node, graphs: Sequence[fx.Graph]) -> None:
        super().__init__()
        self._graphs = tuple(graphs)
        self._is_single = len(node.outputs) == 1
        self._enclosing: tuple[nn.Module, ...] = ()
        self._nothing: list[Tensor] = []

    def enclose(self, module: nn.Module) -> None:
        """Set the enclosing module."""
        # In a tuple, so that torch does not register it as a part of this one.
        self._enclosing = (module,)

    def _run(self, graph: fx.Graph, *values: Any) -> list[Any]:
        return list(fx.Interpreter(self._enclosing[0], graph=graph).run(*values))

    def _unrun(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return what is stacked if the graph never runs, on the device of the given tensors."""
        device = next((value.device for value in values), None)
        return [empty.to(device) for empty in self._nothing]

    def _given(self, results: Sequence[Any]) -> Any:
        return results[0] if self._is_single else tuple(results)


class Branches(ControlFlow):
    """ONNX If: computes one of two graphs."""

    def forward(self, condition: Tensor, *values: Tensor) -> Any:
        """Return the results of the chosen graph for tensors of the enclosing one."""
        return self._given(self._run(self._graphs[0 if bool(condition) else 1], *values))


class Rounds(ControlFlow):
    """ONNX Loop: computes a graph again and again, with its own results as states."""

    def __init__(self, node: ir.Node, graphs: Sequence[fx.Graph]) -> None:
        super().__init__(node, graphs)
        self._states = state_count(node)
        self._nothing = _nothing(node, [0] * (len(node.outputs) - self._states))

    def forward(self, limit: Tensor | None, condition: Tensor | None, *values: Tensor) -> Any:
        """Return the last states, and what each round returned besides, stacked.

        Args:
            limit: Largest number of rounds; None for no limit.
            condition: Whether there is a first round; None for yes.
            *values: The first states, then tensors of the enclosing graph.
        """
        states, outer = list(values[: self._states]), values[self._states :]
        rows: list[list[Any]] = []
        goes_on = condition is None or bool(condition)
        while goes_on and (limit is None or len(rows) < int(limit)):
            results = self._run(self._graphs[0], torch.tensor(len(rows)), torch.tensor(goes_on), *states, *outer)
            goes_on, states = bool(results[0]), results[1 : 1 + self._states]
            rows.append(results[1 + self._states :])
        stacked = [torch.stack(entries) for entries in zip(*rows, strict=True)] if rows else self._unrun(values)
        return self._given([*states, *stacked])


class Slices(ControlFlow):
    """ONNX Scan: computes a graph for each slice of its inputs, with its own results as states."""

    def __init__(self, node: ir.Node, graphs: Sequence[fx.Graph]) -> None:
        super().__init__(node, graphs)
        self._states = state_count(node)
        self._scanned = int_of(node, "num_scan_inputs", 0)
        results = len(node.outputs) - self._states
        self._inputs = _ways(node, "scan_input", self._scanned)
        self._outputs = _ways(node, "scan_output", results)
        self._nothing = _nothing(node, [axis for axis, _ in self._outputs])

    def forward(self, *values: Tensor) -> Any:
        """Return the last states, and what was computed for each slice, stacked.

        Args:
            *values: The first states, the tensors to slice, then tensors of the enclosing graph.
        """
        states, end = list(values[: self._states]), self._states + self._scanned
        slices = [
            value.unbind(axis)[:: -1 if backwards else 1]
            for value, (axis, backwards) in zip(values[self._states : end], self._inputs, strict=True)
        ]
        rows: list[list[Any]] = []
        for step in zip(*slices, strict=True):
            results = self._run(self._graphs[0], *states, *step, *values[end:])
            states = results[: self._states]
            rows.append(results[self._states :])
        stacked = [
            torch.stack(entries[:: -1 if backwards else 1], axis)
            for entries, (axis, backwards) in zip(zip(*rows, strict=True), self._outputs, strict=False)
        ]
        return self._given([*states, *(stacked if rows else self._unrun(values))])


CONTROL_FLOW: dict[str, type[ControlFlow]] = {"If": Branches, "Loop": Rounds, "Scan": Slices}
"""The module of each operator."""


def outer_tensors(body: ir.Graph) -> list[ir.Value]:
    """Return the computed tensors of enclosing graphs that a graph reads."""
    return [value for value in outer_values(body) if value.const_value is None]


def _nothing(node: ir.Node, axes: Sequence[int]) -> list[Tensor]:
    """Return what a node stacks along these axes if its body never runs; sizes that are not declared are 0."""
    results = list(body_of(node, "body").outputs)
    tensors = []
    for value, axis in zip(results[len(results) - len(axes) :], axes, strict=True):
        sizes = [size if isinstance(size, int) else 0 for size in value.shape or ()]
        dtype = np.float32 if value.dtype is None else value.dtype.numpy()
        tensors.append(torch.from_numpy(np.zeros(sizes, dtype)).unsqueeze(axis).narrow(axis, 0, 0))
    return tensors


def _ways(node: ir.Node, prefix: str, count: int) -> list[tuple[int, bool]]:
    """Return the axis of each tensor, and whether it runs backwards."""
    axes, directions = (node.attributes.get(f"{prefix}_{name}") for name in ("axes", "directions"))
    return list(
        zip(
            [0] * count if axes is None else axes.as_ints(),
            [False] * count if directions is None else map(bool, directions.as_ints()),
            strict=True,
        )
    )
