"""Part of a quantized graph in torch, with gradients: operators, fake quantization, and constants and scales to train.

This module imports torch, so it is imported inside functions only.

Samples as torch tensors, several at once where the model allows it.

This module imports torch, so it is imported inside functions only.

How much of a graph the interpreter can train, and where its results are compared.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from quantry.data.calibration_data import CalibrationData
from quantry.errors import RecipeError
from quantry.execute.float_pass import lengths_of
from quantry.execute.interpreter import interpretable, torch_call
from quantry.execute.quantized_view import QuantizedView, Quantizer, Role
from quantry.facts.operators import BIASED, LINEAR, Copies, Family, facts
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.segments import tensor_types, values_used
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.numerics.torch_quantizer import (
    FLOAT_TYPES,
    Gradient,
    derived_bias_scale,
    fake_quantize,
    fake_quantize_bias,
    fake_quantize_float8,
    round_to_float,
)
from quantry.recipe import PowerOfTwoScale

Tensors = dict[str, Any]


# Memory for the activations of one batch: bytes on the CPU, a share of the memory of a GPU.
_CPU_BYTES = 1_500_000_000
_GPU_SHARE = 0.5

# Training holds each activation about this often: raw, quantized, masks and what the backward pass needs.
_COPIES = 5

# An output that such operators put together is compared part by part, so that each part counts by its own size.
_MOVES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Identity")


@dataclass(frozen=True)
class Trained:
    """Which parts of a graph are trained.

    Attributes:
        weights: Quantized weights.
        biases: Biases of nodes with quantized weights.
        scales: log2 of the scales of activations and weights.
        frozen: Names of tensors whose scale stays fixed even if scales are trained.
    """

    weights: bool = True
    biases: bool = True
    scales: bool = False
    frozen: frozenset[str] = frozenset()


class TrainableGraph:
    """Runs nodes of a model in torch, as float or as quantized.

    Args:
        model: The model the nodes belong to.
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
        self.view, self.device = QuantizedView(plan, params), device
        self.nodes = list(nodes)
        opset = model.opset_imports.get("", 13)
        self._calls = [torch_call(node, opset, keep_batch=True) for node in self.nodes]
        self._last_use = {value.name: at for at, node in enumerate(self.nodes) for value in values_used(node)}
        self.constants: dict[str, Any] = {}
        self.log2_scales: dict[str, Any] = {}
        self._fixed: dict[str, Any] = {}
        self._load_constants(trained)
        self._quantizers: dict[str, _FakeQuantizer | _BiasQuantizer] = {}
        self._load_quantizers()
        if trained.scales:
            self._train_scales(trained.frozen)

    def _load_constants(self, trained: Trained) -> None:
        for node, call in zip(self.nodes, self._calls, strict=True):
            for value in (node.inputs[index] for index in call.tensors):
                if value is None or not value.is_initializer() or value.const_value is None or value.name is None:
                    continue
                if value.name in self._fixed or value.name in self.constants:
                    continue
                tensor = torch.from_numpy(np.array(value.const_value.numpy()))
                # Integers are indices, which the operators move themselves where they are needed.
                tensor = tensor.to(self.device if tensor.is_floating_point() else "cpu")
                wanted = (trained.weights and self._is_layer_weight(node, value)) or (
                    trained.biases and self._is_bias(node, value)
                )
                if wanted and tensor.dtype == torch.float32:
                    self.constants[value.name] = tensor.requires_grad_()
                else:
                    self._fixed[value.name] = tensor

    def _is_layer_weight(self, node: ir.Node, value: ir.Value) -> bool:
        weight = self.view.get(value.name or "")
        linear = node.op_type in LINEAR
        return linear and weight is not None and weight.role is Role.WEIGHT and weight.dtype.is_integer

    def _is_bias(self, node: ir.Node, value: ir.Value) -> bool:
        weight = node.inputs[1] if len(node.inputs) > 2 else None
        if weight is None or node.inputs[2] is not value:
            return False
        if node.op_type not in LINEAR and facts(node).tunable:
            return True
        return node.op_type in BIASED and weight.name in self.view.plan.weights

    def _load_quantizers(self) -> None:
        """Make the quantizers of all tensors that occur here."""
        seen = {value.name for node in self.nodes for value in (*node.inputs, *node.outputs) if value is not None}
        # Biases come last in the view: a derived bias needs the quantizers of its input and its weight.
        for quantizer in self.view:
            if quantizer.tensor not in seen:
                continue
            if quantizer.derived is not None and quantizer.params is not None:
                parts = (self._quantizers.get(name) for name in (quantizer.derived.input, quantizer.derived.weight))
                factors = [part for part in parts if isinstance(part, _FakeQuantizer)]
                self._quantizers[quantizer.name] = _BiasQuantizer(quantizer.params, factors, self.device)
            # Other 32-bit types have more digits than float32, so rounding to them would change nothing here.
            elif quantizer.dtype in FLOAT_TYPES or (quantizer.params is not None and quantizer.params.dtype.bits <= 16):
                self._quantizers[quantizer.name] = _FakeQuantizer(quantizer, self.device)

    def _train_scales(self, frozen: frozenset[str]) -> None:
        for name, module in self._quantizers.items():
            quantizer = self.view.get(name)
            if quantizer is None or isinstance(module, _BiasQuantizer) or module.params is None:
                continue
            # Scales of groups stay as they are, as do those that the plan fixes and those of biases.
            trains = quantizer.role in (Role.ACTIVATION, Role.WEIGHT) and not quantizer.fixed
            source = quantizer.source
            if not trains or module.params.group is not None or source in frozen:
                continue
            if source not in self.log2_scales:
                start = np.log2(self.view.params.tensors[source].scale.astype(np.float64)).astype(np.float32)
                self.log2_scales[source] = torch.tensor(start, device=self.device, requires_grad=True)
            module.log2_scale = self.log2_scales[source]

    def run(self, inputs: Mapping[str, Any], wanted: Collection[str], *, quantized: bool) -> Tensors:
        """Return some tensors for given inputs.

        Args:
            inputs: What the nodes read but do not compute: raw values, not quantized.
            wanted: Names of tensors to return, as their readers see them.
            quantized: Whether planned tensors are quantized.
        """
        raw: Tensors = dict(inputs)
        read: Tensors = {}
        keep = frozenset(wanted)
        for at, node in enumerate(self.nodes):
            call = self._calls[at]
            values = [
                self._read(raw, read, value.name or "", node.name or "", quantized)
                if value is not None and call.reads(index)
                else None
                for index, value in enumerate(node.inputs)
            ]
            if self.device != "cpu":
                values = call.on_device(values, self.device)
            outputs = call(values)
            for value, tensor in zip(node.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=False):
                raw[value.name or ""] = tensor
            for used in node.inputs:
                name = used.name if used is not None else None
                if name is not None and self._last_use.get(name) == at and name not in keep:
                    raw.pop(name, None)
                    read.pop(name, None)
        return {name: self._read(raw, read, name, "", quantized) for name in wanted}

    def _read(self, raw: Tensors, read: Tensors, name: str, node: str, quantized: bool) -> Any:
        """Return a tensor as a node reads it."""
        constant = self.constants.get(name)
        if constant is None:
            constant = self._fixed.get(name)
        if not quantized:
            return raw[name] if constant is None else constant
        values = constant
        for quantizer in self.view.path(name, node):
            apply = self._quantizers.get(quantizer.name)
            if apply is None:
                continue
            if quantizer.role is Role.ACTIVATION:
                # All readers of an activation share what its own quantizer returns.
                if name not in read:
                    read[name] = apply(raw[name])
                values = read[name]
            else:
                values = apply(raw[name] if values is None else values)
        return raw[name] if values is None else values

    def values(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trained constants as arrays."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.constants.items()}

    def trained_params(self) -> dict[str, TensorParams]:
        """Return the parameters of all tensors whose scale was trained, and of biases derived from them."""
        known = self.view.params.tensors
        scales = {name: replace(known[name], scale=self._scale(name)) for name in self.log2_scales}
        trained = self.view.with_scales(scales).params.tensors
        return {name: params for name, params in trained.items() if params is not known[name]}

    def _scale(self, name: str) -> npt.NDArray[np.float32]:
        quantizer = self.view.get(name)
        assert quantizer is not None
        logarithm = self.log2_scales[name].detach().cpu()
        if isinstance(quantizer.spec.scale, PowerOfTwoScale):
            logarithm = torch.round(logarithm)
        return np.asarray(torch.exp2(logarithm).numpy(), np.float32)


class _FakeQuantizer:
    """Fake-quantizes one tensor, with a scale that may be trained."""

    def __init__(self, quantizer: Quantizer, device: str) -> None:
        # A type that is reached by a cast has no parameters, whatever the caller has under the tensor's name.
        self.params = None if quantizer.dtype in FLOAT_TYPES else quantizer.params
        self._dtype = quantizer.dtype
        self.log2_scale: Any = None
        self._power_of_two = isinstance(quantizer.spec.scale, PowerOfTwoScale)
        if self.params is not None:
            self._scale = torch.tensor(self.params.scale, device=device)
            self._zero_point = torch.tensor(self.params.zero_point.astype(np.float32), device=device)
            self._limits = (self.params.lowest, self.params.highest)

    def scale(self) -> Any:
        """Return the scale in use, without a gradient."""
        if self.log2_scale is None:
            return self._scale
        logarithm = self.log2_scale.detach()
        return torch.exp2(torch.round(logarithm) if self._power_of_two else logarithm)

    def __call__(self, values: Any) -> Any:
        if self.params is None:
            return round_to_float(values, self._dtype)
        axis = self.params.axis
        if self._dtype.is_float8:
            trained = self.log2_scale is not None
            return fake_quantize_float8(
                values, self.log2_scale if trained else self._scale, self._dtype, axis, log2=trained
            )
        if self.log2_scale is not None:
            gradient = Gradient.TQT if self._power_of_two else Gradient.LOG2
            return fake_quantize(values, self.log2_scale, self._zero_point, self._limits, axis, gradient)
        if self.params.group is not None:
            index = torch.arange(values.shape[axis], device=values.device) // self.params.group
            scale, zero_point = (part.index_select(axis, index) for part in (self._scale, self._zero_point))
            return fake_quantize(values, scale, zero_point, self._limits)
        return fake_quantize(values, self._scale, self._zero_point, self._limits, axis)


class _BiasQuantizer:
    """Rounds a derived bias to int32 at the scales of its input and its weight, as the deployed model does.

    Args:
        params: The planned parameters of the bias.
        factors: Quantizers of its input and its weight.
        device: Where to compute.
    """

    def __init__(self, params: TensorParams, factors: Sequence[_FakeQuantizer], device: str) -> None:
        self._scale = torch.tensor(params.scale, device=device)
        self._limits = (params.lowest, params.highest)
        self._factors = factors

    def __call__(self, bias: Any) -> Any:
        scale = self._scale
        # The planned scale is exact as long as neither factor is trained; the limits of an NPU may have moved it.
        if len(self._factors) == 2 and any(factor.log2_scale is not None for factor in self._factors):
            scale = derived_bias_scale(*(factor.scale() for factor in self._factors))
        return fake_quantize_bias(bias, scale, self._limits)


def torch_device(device: str) -> str:
    """Return torch's name of a device that a recipe names.

    Raises:
        RecipeError: torch cannot use it on this machine.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return "cpu"
    # torch for AMD's GPUs uses the names of CUDA too.
    if not torch.cuda.is_available():
        raise RecipeError(
            f"the device to train on must be one that torch can use, got {device!r} without a GPU; in tune"
        )
    # TF32 has 10 bits of mantissa, fewer than the 16-bit grids that are trained here.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return f"cuda:{number.split(',')[0]}"


class SampleBatches:
    """The samples of calibration data, joined along their first axis on demand.

    Args:
        data: The samples.
        graph: The graph that reads them; decides how many fit in one batch.
        model: The model of the graph, for the sizes of its tensors.
        device: Where batches go.
    """

    def __init__(self, data: CalibrationData, graph: TrainableGraph, model: Any, device: str) -> None:
        self.samples = [{name: torch.from_numpy(array.copy()) for name, array in sample.items()} for sample in data]
        self._device = device
        first = next(iter(data))
        lengths = lengths_of(first, data.inputs)
        held = _COPIES * sum(kind.nbytes(lengths) for kind in tensor_types(model).values())
        budget = _CPU_BYTES if device == "cpu" else _GPU_SHARE * torch.cuda.get_device_properties(device).total_memory
        self.together = max(1, int(budget // max(1, held))) if self._joins(graph) else 1

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, numbers: Sequence[int]) -> Tensors:
        """Return some samples as one batch on the device."""
        chosen = [self.samples[number] for number in numbers]
        if len(chosen) == 1:
            return {name: tensor.to(self._device) for name, tensor in chosen[0].items()}
        return {name: torch.cat([sample[name] for sample in chosen]).to(self._device) for name in chosen[0]}

    def _joins(self, graph: TrainableGraph) -> bool:
        """Return whether the output of two joined samples equals those of the single samples."""
        if len(self.samples) < 2:
            return False
        shapes = [{name: tensor.shape for name, tensor in sample.items()} for sample in self.samples]
        if any(shape != shapes[0] for shape in shapes) or any(not shape for shape in shapes[0].values()):
            return False
        last = [value.name or "" for value in graph.nodes[-1].outputs[:1]]
        try:
            with torch.no_grad():
                alone = [graph.run(self.get([number]), last, quantized=False)[last[0]] for number in (0, 1)]
                both = graph.run(self.get([0, 1]), last, quantized=False)[last[0]]
        except RuntimeError:
            return False
        expected = torch.cat(alone) if alone[0].dim() else alone[0]
        if both.shape != expected.shape:
            return False
        # Other batch sizes add in another order; a model that mixes its samples differs by far more than that.
        return float((both - expected).float().norm()) <= 1e-2 * float(expected.float().norm()) + 1e-6


@dataclass(frozen=True, eq=False)
class InterpretablePart:
    """The nodes that can be computed from the inputs with operators that the interpreter knows.

    Attributes:
        nodes: These nodes, in order.
        targets: Names of the tensors to compare: outputs of the model, and what the remaining nodes read. Outputs that
            are put together from several tensors are compared part by part.
        notes: Which operators are not interpretable, and why.
    """

    nodes: tuple[ir.Node, ...]
    targets: tuple[str, ...]
    notes: tuple[str, ...]


def interpretable_part(model: ir.Model) -> InterpretablePart:
    """Return the part of a model that can be trained end to end."""
    known: set[ir.Value] = set(model.graph.inputs)
    nodes: list[ir.Node] = []
    ends: dict[ir.Value, None] = {}
    reasons: dict[str, list[str]] = {}
    for node in model.graph:
        used = [value for value in values_used(node) if not value.is_initializer()]
        reason = interpretable(node)
        if reason is None and all(value in known for value in used):
            nodes.append(node)
            known.update(node.outputs)
            continue
        if reason is not None:
            reasons.setdefault(reason, []).append(node.name or "")
        ends.update(dict.fromkeys(value for value in used if value in known and value.producer() is not None))
    ends.update(
        dict.fromkeys(value for value in model.graph.outputs if value in known and value.producer() is not None)
    )
    notes = tuple(
        f"training ends before {len(names)} nodes, such as {names[0]!r}: {reason}" for reason, names in reasons.items()
    )
    return InterpretablePart(tuple(nodes), _targets(list(ends)), notes)


def _targets(ends: Sequence[ir.Value]) -> tuple[str, ...]:
    """Return the tensors that some tensors are put together from."""
    found: dict[str, None] = {}
    pending = list(ends)
    while pending:
        value = pending.pop(0)
        producer = value.producer()
        if producer is None or value.name is None:
            continue
        row = facts(producer)
        if row.family is Family.JOIN or row.copies is Copies.EACH_ONCE:
            data = producer.inputs if row.family is Family.JOIN else producer.inputs[:1]
            pending += [part for part in data if part is not None and not part.is_initializer()]
        elif value.dtype == ir.DataType.FLOAT:
            found[value.name] = None
    return tuple(found)
