"""Part of a quantized graph in torch, with constants and scales to train, and the batches it is trained on.

How much of a model that part can be, and which of its tensors are compared, is decided here as well.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import fx, nn

from quantry.data.calibration_data import CalibrationData
from quantry.errors import RecipeError
from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.execute.float_pass import lengths_of
from quantry.execute.graph_builder import GraphBuilder, GraphDefinition
from quantry.execute.interpreter import interpretable
from quantry.execute.joined_samples import Tensors, joined, joins
from quantry.execute.quantized_view import QuantizedView, Role
from quantry.facts.operators import BIASED, LINEAR, Copies, Family, facts
from quantry.graph.segments import tensor_types, values_used
from quantry.notes import Note
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import Gradient

# Memory for the activations of one batch: bytes on the CPU, a share of the memory of a GPU.
_CPU_BYTES = 1_500_000_000
_GPU_SHARE = 0.5

# Training holds each activation about this often: raw, quantized, masks and what the backward pass needs.
_COPIES = 5


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
    """Some nodes of a model in torch, as float or as quantized.

    Args:
        definition: The model, which of its tensors are quantized, and with which scales and zero points.
        nodes: Which of its nodes, in order; all interpretable.
        outputs: Names of the tensors to compute.
        trained: What gets a gradient.
        device: Where to compute.

    Attributes:
        constants: float constants that are trained, by initializer name.
        log2_scales: Trained logarithms of scales, by tensor name.
    """

    def __init__(
        self,
        definition: GraphDefinition,
        nodes: Sequence[ir.Node],
        outputs: Collection[str],
        trained: Trained,
        device: str = "cpu",
    ) -> None:
        self.outputs = tuple(outputs)
        builder = GraphBuilder(definition, joins_samples=True)
        self.view = builder.view
        names = _trained_constants(nodes, self.view, trained)
        self._inputs = builder.build_part(nodes, self.outputs, names)
        module = fx.GraphModule(builder.root, builder.graph)
        layout = builder.layout
        # Integers are indices and sizes, which the operators move themselves where they are needed.
        self._module = module._apply(lambda tensor: tensor.to(device) if tensor.is_floating_point() else tensor)
        self._quantizers = {name: module.get_submodule(path).to(device) for name, path in layout.quantizers.items()}
        module.requires_grad_(requires_grad=False)
        self.constants = {name: module.get_parameter(layout.tensors[name]).requires_grad_() for name in names}
        self.log2_scales = self._trained_scales(trained.frozen) if trained.scales else {}

    def _trained_scales(self, frozen: frozenset[str]) -> dict[str, nn.Parameter]:
        """Return logarithms of scales, except of groups, of biases, and of what the plan fixes."""
        scales: dict[str, nn.Parameter] = {}
        for quantizer in self.view:
            module = self._quantizers.get(quantizer.source)
            if not isinstance(module, FakeQuantizer) or quantizer.role is Role.BIAS or quantizer.fixed:
                continue
            if module.group is None and quantizer.source not in frozen and quantizer.source not in scales:
                (scales[quantizer.source],) = module.learn(Gradient.TQT)
        return scales

    def run(self, inputs: Mapping[str, Any], *, quantized: bool) -> Tensors:
        """Return the outputs, as their readers see them.

        Args:
            inputs: What the nodes read but do not compute: raw values, not quantized.
            quantized: Whether planned tensors are quantized.
        """
        for quantizer in self._quantizers.values():
            quantizer.enabled = quantized
        tensors = self._module(*(inputs[name] for name in self._inputs))
        return dict(zip(self.outputs, tensors, strict=True))

    def values(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trained constants as arrays."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.constants.items()}

    def trained_params(self) -> dict[str, TensorParams]:
        """Return the parameters of all tensors whose scale was trained, and of biases derived from them."""
        start = self.view.params.tensors
        quantizers = {name: self._quantizers[name] for name in self.log2_scales}
        scales = {name: module.params() for name, module in quantizers.items() if isinstance(module, FakeQuantizer)}
        trained = self.view.with_scales(scales).params.tensors
        return {name: params for name, params in trained.items() if params is not start[name]}


def _trained_constants(nodes: Sequence[ir.Node], view: QuantizedView, trained: Trained) -> list[str]:
    """Return the names of the constants that get a gradient; the first node that reads a constant decides."""
    readers: dict[ir.Value, ir.Node] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.is_initializer() and value.dtype == ir.DataType.FLOAT:
                readers.setdefault(value, node)
    return [
        value.name or ""
        for value, node in readers.items()
        if (trained.weights and _is_layer_weight(node, value, view))
        or (trained.biases and _is_layer_bias(node, value, view))
    ]


def _is_layer_weight(node: ir.Node, value: ir.Value, view: QuantizedView) -> bool:
    weight = view.get(value.name or "")
    linear = node.op_type in LINEAR
    return linear and weight is not None and weight.role is Role.WEIGHT and weight.dtype.is_integer


def _is_layer_bias(node: ir.Node, value: ir.Value, view: QuantizedView) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 2 else None
    if weight is None or node.inputs[2] is not value:
        return False
    if node.op_type not in LINEAR and facts(node).tunable:
        return True
    return node.op_type in BIASED and weight.name in view.plan.weights


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
        nbytes = _COPIES * sum(kind.nbytes(lengths) for kind in tensor_types(model).values())
        budget = _CPU_BYTES if device == "cpu" else _GPU_SHARE * torch.cuda.get_device_properties(device).total_memory
        shapes = [{name: tensor.shape for name, tensor in sample.items()} for sample in self.samples]
        with torch.no_grad():
            can_join = all(shape == shapes[0] for shape in shapes) and joins(
                self.samples[:2], lambda inputs: graph.run(self._moved(inputs), quantized=False)
            )
        self.together = max(1, int(budget // max(1, nbytes))) if can_join else 1

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, numbers: Sequence[int]) -> Tensors:
        """Return some samples as one batch on the device."""
        return self._moved(joined([self.samples[number] for number in numbers]))

    def _moved(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}


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
    notes: tuple[Note, ...]


def interpretable_part(model: ir.Model) -> InterpretablePart:
    """Return the part of a model that can be trained end to end."""
    computable: set[ir.Value] = set(model.graph.inputs)
    nodes: list[ir.Node] = []
    ends: dict[ir.Value, None] = {}
    reasons: dict[str, list[str]] = {}
    for node in model.graph:
        used = [value for value in values_used(node) if not value.is_initializer()]
        reason = interpretable(node)
        if reason is None and all(value in computable for value in used):
            nodes.append(node)
            computable.update(node.outputs)
            continue
        if reason is not None:
            reasons.setdefault(reason, []).append(node.name or "")
        ends.update(dict.fromkeys(value for value in used if value in computable and value.producer() is not None))
    ends.update(
        dict.fromkeys(value for value in model.graph.outputs if value in computable and value.producer() is not None)
    )
    message = "training ends before {count} nodes, such as {node!r}: {reason}"
    notes = tuple(Note.of(message, count=len(names), node=names[0], reason=reason) for reason, names in reasons.items())
    return InterpretablePart(tuple(nodes), _targets(list(ends)), notes)


def _targets(ends: Sequence[ir.Value]) -> tuple[str, ...]:
    """Return the tensors that some tensors are put together from."""
    targets: dict[str, None] = {}
    pending = list(ends)
    while pending:
        value = pending.pop(0)
        producer = value.producer()
        if producer is None or value.name is None:
            continue
        row = facts(producer)
        if row.family is Family.JOIN or row.copies is Copies.EACH_ONCE:
            data = producer.inputs if row.family is Family.JOIN else producer.inputs[:1]
            pending += [source for source in data if source is not None and not source.is_initializer()]
        elif value.dtype == ir.DataType.FLOAT:
            targets[value.name] = None
    return tuple(targets)
