"""Runs nodes of a float or simulated model in torch.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from quantry.observe.segments import values_used
from quantry.tune.interpreter import OPERATORS, Attributes, interpretable
from quantry.tune.planned_graph import READ_BY_PYTHON
from quantry.tune.simulation import CONTRIB

_PAIR = ("QuantizeLinear", "DequantizeLinear")

_HELD = {np.dtype(np.int8): torch.int8, np.dtype(np.uint8): torch.uint8, np.dtype(np.int16): torch.int16}
"""What integers are held in; torch cannot compute with other types of 16 bits."""


class TensorPart:
    """Runs nodes of one model; constants are read anew after `forget`.

    Args:
        model: The model.
        device: Where to compute.
    """

    def __init__(self, model: ir.Model, device: str) -> None:
        self._device = device
        self._opset = model.opset_imports.get("", 13)
        self._constants: dict[str, Any] = {}

    def forget(self) -> None:
        """Forget what constants were read."""
        self._constants.clear()

    def run(self, nodes: Sequence[ir.Node], inputs: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
        """Return some of what nodes give.

        Args:
            nodes: The nodes, in order.
            inputs: What they take that they do not give.
            wanted: Names of tensors to return.
        """
        values, keep = dict(inputs), frozenset(wanted)
        last = {value.name: at for at, node in enumerate(nodes) for value in values_used(node)}
        with torch.no_grad():
            for at, node in enumerate(nodes):
                given = [None if value is None else self._value(values, node, value) for value in node.inputs]
                while given and given[-1] is None:
                    given.pop()
                outputs = self._apply(node, given)
                for value, tensor in zip(node.outputs, outputs, strict=False):
                    values[value.name or ""] = tensor
                for used in node.inputs:
                    name = used.name if used is not None else None
                    if name is not None and last.get(name) == at and name not in keep:
                        values.pop(name, None)
        return {name: values[name] for name in wanted}

    def _apply(self, node: ir.Node, given: list[Any]) -> tuple[Any, ...]:
        if node.op_type not in READ_BY_PYTHON and any(v is not None and v.device.type != "cpu" for v in given):
            given = [value if value is None else value.to(self._device) for value in given]
        if node.domain == CONTRIB:
            return (_quantized(node, given) if node.op_type == _PAIR[0] else _restored(given),)
        outputs = OPERATORS[node.op_type](given, Attributes(node, self._opset))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _value(self, values: Mapping[str, Any], node: ir.Node, value: ir.Value) -> Any:
        name = value.name or ""
        if name in values:
            return values[name]
        if name not in self._constants:
            assert value.const_value is not None
            tensor = torch.from_numpy(np.array(value.const_value.numpy()))
            # Sizes and axes are read by Python, so they stay with it.
            read = node.op_type in READ_BY_PYTHON and node.inputs[0] is not value
            stays = read or not tensor.is_floating_point()
            self._constants[name] = tensor if stays and node.domain != CONTRIB else tensor.to(self._device)
        return self._constants[name]


def reason_against(model: ir.Model) -> str | None:
    """Return why a model, and what simulates it, cannot run in torch; None where it can."""
    reasons = (
        None if node.domain == CONTRIB and node.op_type in _PAIR else interpretable(node) for node in model.graph
    )
    return next((reason for reason in reasons if reason is not None), None)


def _quantized(node: ir.Node, given: list[Any]) -> Any:
    values, scale, zero_point = given
    kind = node.inputs[2].const_value.numpy().dtype  # type: ignore[union-attr]
    bounds = np.iinfo(kind)
    levels = torch.round(values / scale).add_(zero_point).clamp_(int(bounds.min), int(bounds.max))
    return levels.to(_HELD.get(kind, torch.int32))


def _restored(given: list[Any]) -> Any:
    integers, scale, zero_point = given
    return (integers.float() - zero_point) * scale
