"""Part of a planned graph in torch: the operators, with every planned tensor fake-quantized and constants to train.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.operators import OPERATORS
from quantry.graph.quant_plan import DerivedBiasPlan, FixedRange, OwnRange, QuantPlan, SharedRange
from quantry.graph.segments import values_used
from quantry.numerics.bias import derived_bias_params
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.numerics.torch_quantizer import fake_quantize, fake_quantize_log2
from quantry.recipe import DataType, PowerOfTwoScale

Tensors = dict[str, Any]

_CASTS = {DataType.FLOAT16: torch.float16, DataType.BFLOAT16: torch.bfloat16}


READ_BY_PYTHON = ("Resize", "Pad", "Reshape", "Slice", "Expand", "Tile", "Split", "Range", "ConstantOfShape")
"""Operators whose further inputs are sizes and axes, which Python reads."""


@dataclass(frozen=True)
class Trained:
    """What of a graph is trained.

    Attributes:
        weights: Quantized weights.
        biases: Biases of nodes with quantized weights.
        scales: log2 of the scales of activations and weights.
        frozen: Names of tensors whose scale stays, although scales are trained.
    """

    weights: bool = True
    biases: bool = True
    scales: bool = False
    frozen: frozenset[str] = frozenset()


class PlannedGraph:
    """Runs nodes of a model in torch, as float or as quantized.

    Args:
        model: The model whose nodes they are.
        nodes: Which nodes, in order; all interpretable.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        trained: What gets a gradient.
        device: Where to compute.

    Attributes:
        constants: float constants that are trained, by initializer name.
        log2_scales: Trained logarithms of scales, by tensor name.
    """

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        plan: QuantPlan,
        params: QuantParams,
        trained: Trained,
        device: str = "cpu",
    ) -> None:
        self.plan, self.params, self.device = plan, params, device
        self.nodes = list(nodes)
        opset = model.opset_imports.get("", 13)
        self._attributes = [Attributes(node, opset) for node in self.nodes]
        self._last_use = {value.name: at for at, node in enumerate(self.nodes) for value in values_used(node)}
        self._users = {name: frozenset(weight.users) for name, weight in plan.weights.items()}
        self._conversions = {
            (conversion.tensor, reader): name
            for name, conversion in plan.conversions.items()
            for reader in conversion.readers
        }
        self.constants: dict[str, Any] = {}
        self.log2_scales: dict[str, Any] = {}
        self._fixed: dict[str, Any] = {}
        self._load_constants(trained)
        self._quantizers = {name: self._quantizer(name) for name in self._quantized_names()}
        if trained.scales:
            self._train_scales(trained.frozen)

    def _load_constants(self, trained: Trained) -> None:
        for node in self.nodes:
            for value in values_used(node):
                if not value.is_initializer() or value.const_value is None or value.name is None:
                    continue
                if value.name in self._fixed or value.name in self.constants:
                    continue
                tensor = torch.from_numpy(np.array(value.const_value.numpy()))
                tensor = tensor.to(self._place_of(node, value, tensor))
                wanted = (
                    trained.weights and value.name in self.plan.weights and self._is_layer_weight(node, value)
                ) or (trained.biases and self._is_bias(node, value))
                if wanted and tensor.dtype == torch.float32:
                    self.constants[value.name] = tensor.requires_grad_()
                else:
                    self._fixed[value.name] = tensor

    def _place_of(self, node: ir.Node, value: ir.Value, tensor: Any) -> str:
        """Return where a constant lies: sizes and axes are read by Python, so they stay with it."""
        read = node.op_type in READ_BY_PYTHON and node.inputs[0] is not value
        return "cpu" if read or not tensor.is_floating_point() else self.device

    def _is_layer_weight(self, node: ir.Node, value: ir.Value) -> bool:
        linear = node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        return linear and self.plan.weights[value.name or ""].spec.dtype.is_integer

    def _is_bias(self, node: ir.Node, value: ir.Value) -> bool:
        weight = node.inputs[1] if len(node.inputs) > 2 else None
        if weight is None or node.inputs[2] is not value:
            return False
        if node.op_type in ("LayerNormalization", "InstanceNormalization"):
            return True
        return node.op_type in ("Conv", "ConvTranspose", "Gemm") and weight.name in self.plan.weights

    def _quantized_names(self) -> list[str]:
        """Return the planned tensors that occur here: activations, conversions, weights and biases."""
        seen = {value.name for node in self.nodes for value in (*node.inputs, *node.outputs) if value is not None}
        conversions = [name for (tensor, _), name in self._conversions.items() if tensor in seen]
        planned = (*self.plan.activations, *self.plan.weights, *self.plan.biases)
        return [name for name in planned if name in seen] + conversions

    def _quantizer(self, name: str) -> "_Quantizer | None":
        bias = self.plan.biases.get(name)
        # The accumulator's grid is so fine that rounding to it makes no difference to training.
        if isinstance(bias, DerivedBiasPlan):
            return None
        dtype = self._type_of(name)
        if dtype in _CASTS:
            return _Quantizer(name, None, dtype, self.device)
        params = self.params.tensors.get(name)
        return None if params is None or params.dtype.bits > 16 else _Quantizer(name, params, dtype, self.device)

    def _type_of(self, name: str) -> DataType:
        if name in self.plan.activations:
            planned = self.plan.activations[self.plan.root(name)]
            assert not isinstance(planned, SharedRange)
            return planned.spec.dtype
        for group in (self.plan.conversions, self.plan.weights, self.plan.biases):
            if name in group:
                return group[name].spec.dtype  # type: ignore[union-attr]
        raise KeyError(name)

    def _train_scales(self, frozen: frozenset[str]) -> None:
        for name, quantizer in self._quantizers.items():
            if quantizer is None or quantizer.params is None or quantizer.params.group is not None:
                continue
            root = self.plan.root(name) if name in self.plan.activations else name
            planned = self.plan.activations.get(root) or self.plan.weights.get(root)
            if root in frozen or planned is None or isinstance(planned, FixedRange | SharedRange):
                continue
            if root not in self.log2_scales:
                start = np.log2(self.params.tensors[root].scale.astype(np.float64)).astype(np.float32)
                self.log2_scales[root] = torch.tensor(start, device=self.device, requires_grad=True)
            quantizer.log2_scale = self.log2_scales[root]
            quantizer.power_of_two = isinstance(planned.spec.scale, PowerOfTwoScale)

    def run(self, inputs: Mapping[str, Any], wanted: Collection[str], *, quantized: bool) -> Tensors:
        """Return some tensors for given inputs.

        Args:
            inputs: What the nodes take that they do not compute: raw values, before any pair.
            wanted: Names of tensors to return, as their readers see them.
            quantized: Whether planned tensors are quantized.
        """
        raw: Tensors = dict(inputs)
        read: Tensors = {}
        keep = frozenset(wanted)
        for at, node in enumerate(self.nodes):
            values = [
                None if value is None else self._read(raw, read, value.name or "", node.name or "", quantized)
                for value in node.inputs
            ]
            while values and values[-1] is None:
                values.pop()
            if self.device != "cpu" and node.op_type not in READ_BY_PYTHON:
                values = self._on_device(values)
            outputs = OPERATORS[node.op_type](values, self._attributes[at])
            for value, tensor in zip(node.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=False):
                raw[value.name or ""] = tensor
            for used in node.inputs:
                name = used.name if used is not None else None
                if name is not None and self._last_use.get(name) == at and name not in keep:
                    raw.pop(name, None)
                    read.pop(name, None)
        return {name: self._read(raw, read, name, "", quantized) for name in wanted}

    def _on_device(self, values: list[Any]) -> list[Any]:
        """Return inputs of which one is on the device with the others there too."""
        if all(value is None or value.device.type == "cpu" for value in values):
            return values
        return [value if value is None else value.to(self.device) for value in values]

    def _read(self, raw: Tensors, read: Tensors, name: str, reader: str, quantized: bool) -> Any:
        """Return a tensor as a node reads it."""
        constant = self.constants.get(name)
        if constant is None:
            constant = self._fixed.get(name)
        if constant is not None:
            rounded = quantized and (name not in self._users or reader in self._users[name])
            quantizer = self._quantizers.get(name) if rounded else None
            return constant if quantizer is None else quantizer(constant)
        if not quantized:
            return raw[name]
        if name not in read:
            quantizer = self._quantizers.get(name)
            read[name] = raw[name] if quantizer is None else quantizer(raw[name])
        conversion = self._quantizers.get(self._conversions.get((name, reader), ""))
        return read[name] if conversion is None else conversion(read[name])

    def read_as_planned(self, name: str, values: Any) -> Any:
        """Return a tensor as its readers see it in the quantized graph."""
        quantizer = self._quantizers.get(name)
        return values if quantizer is None else quantizer(values)

    def values(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trained constants as arrays."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.constants.items()}

    def trained_params(self) -> dict[str, TensorParams]:
        """Return the parameters of all tensors whose scale was trained, and of biases that follow from them."""
        scales = {name: self._scale(name) for name in self.log2_scales}
        changed: dict[str, TensorParams] = {}
        for name, params in self.params.tensors.items():
            root = self.plan.root(name) if name in self.plan.activations else name
            if root in scales:
                changed[name] = replace(params, scale=scales[root])
        for name, bias in self.plan.biases.items():
            if isinstance(bias, DerivedBiasPlan) and (bias.input in changed or bias.weight in changed):
                parts = (changed.get(part, self.params.tensors[part]) for part in (bias.input, bias.weight))
                changed[name] = derived_bias_params(*parts)
        return changed

    def _scale(self, name: str) -> npt.NDArray[np.float32]:
        planned: Any = self.plan.activations.get(name) or self.plan.weights.get(name)
        assert isinstance(planned, OwnRange) or name in self.plan.weights
        logarithm = self.log2_scales[name].detach().cpu()
        if isinstance(planned.spec.scale, PowerOfTwoScale):
            logarithm = torch.round(logarithm)
        return np.asarray(torch.exp2(logarithm).numpy(), np.float32)


class _Quantizer:
    """Fake-quantizes one tensor."""

    def __init__(self, name: str, params: TensorParams | None, dtype: DataType, device: str) -> None:
        self.name, self.params, self.dtype = name, params, dtype
        self.log2_scale: Any = None
        self.power_of_two = False
        if params is not None:
            self._scale = torch.tensor(params.scale, device=device)
            self._zero_point = torch.tensor(params.zero_point.astype(np.float32), device=device)
            self._limits = (params.lowest, params.highest)

    def __call__(self, values: Any) -> Any:
        if self.params is None:
            return values + (values.detach().to(_CASTS[self.dtype]).float() - values.detach())
        axis = self.params.axis
        if self.log2_scale is not None:
            return fake_quantize_log2(
                values, self.log2_scale, self._zero_point, self._limits, axis, power_of_two=self.power_of_two
            )
        if self.params.group is not None:
            index = torch.arange(values.shape[axis], device=values.device) // self.params.group
            scale, zero_point = (part.index_select(axis, index) for part in (self._scale, self._zero_point))
            return fake_quantize(values, scale, zero_point, self._limits)
        return fake_quantize(values, self._scale, self._zero_point, self._limits, axis)
