"""Scales channels so that rounding with one scale per tensor costs the results least.

::

    y = f(w x)          w' = w * 2^e for each output channel,    y' = y * 2^e
    z = v y             v' = v / 2^e for each input channel,     z' = z

As in equalization, the factors go where they do not change the function. Here they are chosen by what rounding errors
of activations, weights and biases cost the results (`error_costs`). Coordinate descent visits one tensor after the
other and picks the powers of two with the least cost, together with the scales of the tensor and of the weights that
produce and read it. Factors are powers of two, so the float model computes the same bits.

A channel multiplied by 2^j is rounded with a step 2^j times as fine, and saturates 2^j times as early. In terms of the
original values only the step changes, so no model has to run again when channels are scaled.
"""

import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from quantry.equalize.channels import ChannelAxis, propagate_factor
from quantry.equalize.factor_absorption import CompensatingMul, FactorAbsorption, ScaleLayer
from quantry.equalize.linear_layer import ChannelLayout, LinearLayer, array_of
from quantry.equalize.smooth import SmoothQuantTarget, find_targets, within_span
from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt, tensor_from_array
from quantry.notes import Note
from quantry.numerics.power_of_two import nearest_exponent
from quantry.numerics.rounding import round_and_clip
from quantry.recipe import SmoothQuant
from quantry.scale.npu import refine_for_npu
from quantry.torchfront.error_costs import (
    Candidates,
    Importance,
    candidate_errors,
    check_scales_are_fixed,
    collect_costs,
)
from quantry.torchfront.freezing import current_params
from quantry.torchfront.module_definition import ModuleDefinition
from quantry.torchfront.quantized_module import QuantizedModule, build_in_place_of, fake_quantizers
from quantry.torchfront.scale_choice import tied_scales
from quantry.tune import Tuned, tuned_model

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_SPAN = 6
"""Costs of activations are measured for exponents up to this."""

_COARSER, _FINER = 4.0, 16.0
"""How the cost grows per power of two beyond those measured: rounding error grows with the square of the step, and
saturation faster."""


@dataclass(eq=False)
class ActivationCosts:
    """The costs of rounding an activation, per channel.

    Attributes:
        quantizer: Its quantizer.
        costs: Measured costs, [1 + 2 * span, channels], with channels multiplied by powers of two from -span to span.
        enlarged: Exponents of the factors of the channels, [channels].
        coarser: Exponent of the factor of the scale.
    """

    quantizer: FakeQuantizer
    costs: Floats = field(default_factory=lambda: np.zeros((1 + 2 * _SPAN, 0)))
    enlarged: Whole = field(default_factory=lambda: np.zeros(0, np.int64))
    coarser: int = 0

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add the costs of a batch; channels are the second axis."""
        steps = Candidates.of(self.quantizer, 2.0 ** -np.arange(-_SPAN, _SPAN + 1))
        costs = candidate_errors(values, gradient, steps, 1 if values.dim() > 1 else None).numpy()
        if self.costs.shape[1] not in (0, costs.shape[1]):  # tensors with different numbers of channels share the scale
            self.costs, costs = (array.sum(1, keepdims=True) for array in (self.costs, costs))
        self.costs = self.costs + costs if self.costs.size else costs
        self.enlarged = np.zeros(self.costs.shape[1], np.int64)

    @property
    def channels(self) -> int:
        """Number of channels; 1 if tensors with different numbers share the scale, 0 if the results ignore it."""
        return int(self.costs.shape[1])

    def at(self, power: int) -> Floats:
        """Return the cost of each channel if all are multiplied by another power of two, [channels]."""
        exponents = self.enlarged - self.coarser + power
        costs = self.costs[np.clip(exponents + _SPAN, 0, 2 * _SPAN), np.arange(self.channels)]
        beyond = _FINER ** np.maximum(exponents - _SPAN, 0) * _COARSER ** np.maximum(-_SPAN - exponents, 0)
        return np.asarray(costs * beyond)

    def total(self, power: int) -> float:
        """Return the total cost if all channels are multiplied by another power of two."""
        return float(self.at(power).sum())


@dataclass(eq=False)
class ConstantCosts:
    """The costs of rounding a weight or a bias.

    Attributes:
        quantizer: Its quantizer.
        share: Fraction of the cost that remains after rounding is tuned.
        curvature: Cost of a squared error of each number, in the constant's own shape.
        values: The numbers, [groups, outputs / groups, inputs / groups, kernel].
        outputs: Exponents of the factors of output channels, [outputs].
        inputs: Exponents of the factors of input channels, [inputs].
        coarser: Exponent of the factor of the scale.
        placed: Whether `values` is set.
    """

    quantizer: FakeQuantizer
    share: float = 1.0
    curvature: Floats = field(default_factory=lambda: np.zeros(()))
    values: Floats = field(default_factory=lambda: np.zeros((1, 1, 1, 1)))
    outputs: Whole = field(default_factory=lambda: np.zeros(1, np.int64))
    inputs: Whole = field(default_factory=lambda: np.zeros(1, np.int64))
    coarser: int = 0
    placed: bool = False

    def add(self, _: Tensor, gradient: Tensor) -> None:
        """Add the costs of a batch."""
        self.curvature = self.curvature + gradient.square().double().cpu().numpy()

    def set_values(self, values: npt.NDArray[np.float32], layout: ChannelLayout) -> None:
        """Set the numbers and the position of their channels; only the first call has an effect."""
        if self.placed:
            return
        self.placed = True
        self.values = layout.view(np.array(values, np.float64, order="C"))
        self.curvature = layout.view(np.ascontiguousarray(np.broadcast_to(self.curvature, values.shape)))
        self.outputs, self.inputs = np.zeros(layout.outputs, np.int64), np.zeros(layout.inputs, np.int64)

    def at(self, power: int, *, of_inputs: bool = False) -> Floats:
        """Return the cost of each output (or input) channel if all are multiplied by another power of two."""
        axes = (1, 3) if of_inputs else (2, 3)
        return np.asarray(self._errors(power).sum(axes).reshape(-1))

    def total(self, power: int) -> float:
        """Return the total cost if all numbers are multiplied by another power of two."""
        return float(self._errors(power).sum())

    def _errors(self, power: int) -> Floats:
        groups = self.values.shape[0]
        enlarged = self.outputs.reshape(groups, -1, 1, 1) + self.inputs.reshape(groups, 1, -1, 1)
        step = float(self.quantizer.scale) * np.exp2(self.coarser - power - enlarged)
        low, high = (limit - int(self.quantizer.zero_point) for limit in self.quantizer.limits)
        error = round_and_clip(self.values / step, low, high) * step - self.values
        return np.asarray(self.share * self.curvature * error * error)


def is_shared(quantizer: FakeQuantizer) -> bool:
    """Return whether a tensor has one scale for all channels."""
    return quantizer.axis is None and torch.numel(quantizer.scale) == 1


_REACH = 4
"""Largest change of a channel's exponent in one visit. More is reached by several visits."""

_SETTLE = 2
"""Largest change of a scale's exponent in one visit."""

_SWEEPS, _LEAST_GAIN = 8, 0.003
"""Stop after this many sweeps over the model, or if a sweep reduces the cost by less than this fraction."""

_WEIGHT_SHARE, _BIAS_SHARE = 0.3, 0.7
"""Fraction of the cost of weights and biases that remains after GPTQ has rounded them; measured on a detector."""

Costs = ActivationCosts | ConstantCosts


def balance_channels(
    module: QuantizedModule, batches: Iterable[Any], importance: Importance | None = None, *, seed: int = 0
) -> QuantizedModule:
    """Scale channels by powers of two so that rounding costs the results least; needs no labels.

    This helps tensors with one scale for all channels, as NPUs require, and chooses their scales as well. The float
    model computes the same bits. Factors move from the layer that reads a tensor through Relu, pooling, Concat and the
    like into the layers that produce it, but not through a function such as SiLU, unless ``SmoothQuant`` has put a
    multiplication before its Sigmoid. Weights start from those that the module was quantized with.

    Args:
        module: The result of quantization after training, with scales that are not learned; it is not changed.
        batches: Some calibration batches: tensors, or tuples whose first item is one. A few dozen images are enough.
        importance: Cost of errors of the results; None uses the squared error of each result relative to its energy.
        seed: Seed of the random directions.

    Returns:
        A new module in evaluation mode; the last of ``definition.notes`` says what was done. Weights are rounded to
        nearest; `tune_weights` rounds them better. Batch normalizations of changed layers are folded.

    Raises:
        DataError: There are no batches.
        ModelError: The module is not quantized, or is frozen.
        RecipeError: Scales are learned.

    Example:
        >>> quantized = balance_channels(quantizer.quantize_model(graph, pictures), pictures)  # doctest: +SKIP
        >>> quantized = tune_weights(quantized, pictures, [Gptq()])  # doctest: +SKIP
    """
    check_scales_are_fixed(module, "balance_channels")
    quantizers = {name: quantizer for name, quantizer in fake_quantizers(module).items() if is_shared(quantizer)}
    biases = module.definition.plan.biases
    costs: dict[str, Costs] = {
        name: ConstantCosts(quantizer, _BIAS_SHARE if name in biases else _WEIGHT_SHARE)
        if quantizer.constant
        else ActivationCosts(quantizer)
        for name, quantizer in quantizers.items()
    }
    collect_costs(module, costs, batches, importance, seed)
    model = module.definition.model.model.clone()
    tensors = [
        tensor for pair in _folds(model) if (tensor := _scalable_tensor(module.definition, costs, *pair)) is not None
    ]
    _set_other_values(model, costs)
    balance = _Balance(costs, tied_scales(module))
    first_cost, last_cost = balance.descend(tensors)
    return _rebuilt(module, costs, tensors, f"{1 - last_cost / first_cost if first_cost else 0:.0%}")


@dataclass(eq=False)
class _Part:
    """A tensor that changes if the channels of a tensor are scaled.

    Attributes:
        name: Its name.
        channels: Which of that tensor's channels it has.
        role: 0 is scaled with it, 1 produces it, 2 reads it.
    """

    name: str
    channels: slice
    role: int


@dataclass(eq=False)
class _ScalableTensor:
    """A tensor whose channels can be scaled.

    Attributes:
        name: The tensor.
        fold: How its producers are scaled.
        parts: The tensors that change with it.
        powers: Exponents of the factors of its channels, [channels].
    """

    name: str
    fold: FactorAbsorption
    parts: tuple[_Part, ...]
    powers: Whole


class _Balance:
    """Coordinate descent over the exponents of channels and scales, one tensor after the other."""

    def __init__(self, costs: Mapping[str, Costs], tied: list[list[str]]) -> None:
        self._by_name = costs
        self._groups = {name: [member for member in names if member in costs] for names in tied for name in names}

    def descend(self, tensors: list[_ScalableTensor]) -> tuple[float, float]:
        """Choose exponents and scales; return the cost with the best scales alone, and the final cost."""
        for name in self._by_name:
            self._settle(name)
        first = last = self._total()
        for _ in range(_SWEEPS):
            for tensor in tensors:
                self._improve(tensor)
            previous, last = last, self._total()
            if last > (1.0 - _LEAST_GAIN) * previous:
                break
        return first, last

    def _total(self) -> float:
        return sum(costs.total(0) for costs in self._by_name.values())

    def _settle(self, name: str) -> None:
        """Give a tensor, and those tied to it, the scale with the least cost."""
        group = [self._by_name[member] for member in self._groups.get(name, [name])]
        powers = range(-_SETTLE, _SETTLE + 1)
        best = min(powers, key=lambda power: (sum(costs.total(-power) for costs in group), abs(power)))
        for costs in group:
            costs.coarser += best

    def _improve(self, tensor: _ScalableTensor) -> None:
        tables = [(member, self._table(member)) for member in tensor.parts]
        inside = {member.name for member in tensor.parts}
        tied = {neighbour for name in inside for neighbour in self._groups.get(name, [])} - inside
        steps = (-1, 0, 1)
        outside = {step: sum(self._by_name[name].total(-step) for name in tied) for step in steps}
        now = _costs(tables, len(tensor.powers), (0, 0, 0))[_REACH].sum() + outside[0]
        options = [
            (_costs(tables, len(tensor.powers), changes), changes) for changes in itertools.product(steps, repeat=3)
        ]
        costs, changes = min(options, key=lambda pair: float(pair[0].min(0).sum()) + outside[pair[1][0]])
        lawful = within_span(np.exp2(-(tensor.powers + costs.argmin(0) - _REACH).astype(float)), tensor.fold)
        moved = -nearest_exponent(lawful).astype(np.int64) - tensor.powers
        moved = np.clip(moved, -_REACH, _REACH)
        cost = costs[moved + _REACH, np.arange(len(moved))].sum() + outside[changes[0]]
        if cost >= now:
            return
        self._move(tensor, moved, changes)

    def _table(self, member: _Part) -> Floats:
        """Return the costs of a part's channels, [1 + 2 * (reach + 1), channels], for each change of the exponent."""
        costs = self._by_name[member.name]
        powers = range(-_REACH - 1, _REACH + 2)
        if isinstance(costs, ConstantCosts):
            return np.stack([costs.at(power, of_inputs=member.role == 2) for power in powers])
        return np.stack([costs.at(power) for power in powers])

    def _move(self, tensor: _ScalableTensor, moved: Whole, steps: tuple[int, ...]) -> None:
        tensor.powers = tensor.powers + moved
        coarser: dict[str, int] = {}
        for member in tensor.parts:
            costs, exponents = self._by_name[member.name], moved[member.channels]
            if isinstance(costs, ActivationCosts):
                costs.enlarged = costs.enlarged + exponents
            elif member.role == 2:
                costs.inputs = costs.inputs - exponents
            else:
                costs.outputs = costs.outputs + exponents
            coarser |= dict.fromkeys(self._groups.get(member.name, [member.name]), steps[member.role])
        for name, step in coarser.items():
            self._by_name[name].coarser += step
        for member in tensor.parts:
            self._settle(member.name)


def _costs(tables: list[tuple[_Part, Floats]], channels: int, steps: tuple[int, ...]) -> Floats:
    """Return the costs of channels, [1 + 2 * reach, channels], per exponent, with the scales of each role changed."""
    costs = np.zeros((1 + 2 * _REACH, channels))
    for member, table in tables:
        turned = table[::-1] if member.role == 2 else table
        # A larger scale has the effect of smaller channels; for a reader, whose factors are inverse, the opposite.
        start = 1 + steps[member.role] if member.role == 2 else 1 - steps[member.role]
        costs[:, member.channels] += turned[start : start + 1 + 2 * _REACH]
    return costs


def _folds(model: ir.Model) -> list[tuple[SmoothQuantTarget, FactorAbsorption]]:
    """Return the tensors of a model whose channels can be scaled without adding an operator, in graph order."""
    targets, _ = find_targets(model, SmoothQuant())
    folds = [(target, target.absorption()) for target in targets if target.axis == 1]
    return [
        (target, fold)
        for target, fold in folds
        if isinstance(fold, FactorAbsorption)
        and not fold.products
        and all(isinstance(edit, ScaleLayer | CompensatingMul) for edit in fold.edits)
    ]


def _scalable_tensor(
    definition: ModuleDefinition, costs: Mapping[str, Costs], target: SmoothQuantTarget, fold: FactorAbsorption
) -> _ScalableTensor | None:
    """Return a tensor with everything that changes with it, or None if the cost of a part is not known."""
    ends = {edit.layer.output: edit.channels for edit in fold.makers}
    divided = _divided(target.value, 0, ends, definition)
    if divided is None:
        return None
    quantized = {name: channels for value, channels in divided for name in _quantizers(definition, value)}
    members = [_Part(name, channels, 0) for name, channels in quantized.items()]
    everywhere = slice(0, target.channels)
    layers = [(edit.layer, edit.channels, 1) for edit in fold.makers]
    layers += [(layer, everywhere, 2) for layer in target.layers]
    for layer, channels, role in layers:
        names = _constants(layer, costs, with_bias=role == 1)
        if names is None:
            return None
        members += [_Part(name, channels, role) for name in names]
    unknown = [member for member in members if not _has_costs(costs.get(member.name), member)]
    if unknown:
        return None
    return _ScalableTensor(target.value.name or "", fold, tuple(members), np.zeros(target.channels, np.int64))


def _has_costs(costs: Costs | None, member: _Part) -> bool:
    width = member.channels.stop - member.channels.start
    return isinstance(costs, ConstantCosts) or (costs is not None and costs.channels == width)


def _constants(layer: LinearLayer, costs: Mapping[str, Costs], *, with_bias: bool) -> list[str] | None:
    """Return the constants of a layer and set the channels of their costs; None if the weight has no costs."""
    weight = costs.get(layer.weight.name or "")
    if not isinstance(weight, ConstantCosts):
        return None
    weight.set_values(array_of(layer.weight), layer.layout)
    names = [layer.weight.name or ""]
    bias = None if layer.bias is None else costs.get(layer.bias.name or "")
    if with_bias and layer.bias is not None and isinstance(bias, ConstantCosts):
        outputs = layer.layout.outputs
        if array_of(layer.bias).size != outputs:
            return None
        bias.set_values(array_of(layer.bias).reshape(-1), ChannelLayout(1, outputs, 1, input_first=False))
        names.append(layer.bias.name or "")
    return names


def _set_other_values(model: ir.Model, costs: Mapping[str, Costs]) -> None:
    """Set the numbers of constants that belong to no scalable tensor, so that their scales are chosen too."""
    for name, value in model.graph.initializers.items():
        constant = costs.get(name)
        if isinstance(constant, ConstantCosts):
            constant.set_values(array_of(value), ChannelLayout(1, 1, 1, input_first=False))


def _quantizers(definition: ModuleDefinition, value: ir.Value) -> list[str]:
    """Return the names of the quantizers of a tensor."""
    plan, name = definition.plan, value.name or ""
    roots = [plan.root(name)] if name in plan.activations else []
    return roots + [label for label, conversion in plan.conversions.items() if conversion.tensor == name]


def _divided(
    value: ir.Value, start: int, ends: Mapping[ir.Value, slice], definition: ModuleDefinition
) -> list[tuple[ir.Value, slice]] | None:
    """Return the tensors between producing layers and a value, with their channels; None if factors cannot pass."""
    width = value.shape[1] if value.shape is not None and len(value.shape) > 1 else None
    producer = value.producer()
    if value in ends:
        return [(value, ends[value])] if ends[value].start == start else None
    original = None if producer is None else definition.original_nodes.get(producer.name or "")
    if producer is None or not isinstance(width, int) or (original is not None and original.limit is not None):
        return None
    tensors = [(value, slice(start, start + width))]
    if producer.op_type == "Concat":
        for source in producer.inputs:
            nested = None if source is None else _divided(source, start, ends, definition)
            if nested is None:
                return None
            tensors += nested
            start = nested[0][1].stop
        return tensors
    through = producer.inputs if producer.op_type == "Mul" else producer.inputs[:1]
    if producer.op_type != "Mul" and propagate_factor(producer, ChannelAxis(1)) != ChannelAxis(1):
        return None
    ways = [_divided(source, start, ends, definition) for source in through if source is not None]
    return next((tensors + way for way in ways if way is not None), None)


def _rebuilt(
    module: QuantizedModule, costs: Mapping[str, Costs], tensors: list[_ScalableTensor], fall: str
) -> QuantizedModule:
    """Return a module with scaled channels and the chosen scales."""
    start = module.definition
    powers = {tensor.name: tensor.powers for tensor in tensors if tensor.powers.any()}
    model, constants, weights = _scaled(start.model.model, powers)
    stepped = copy.deepcopy(module)
    for name, quantizer in fake_quantizers(stepped).items():
        if name in constants:
            peak = float(np.abs(constants[name]).max()) / (quantizer.limits[1] * float(quantizer.scale))
            quantizer.scale.mul_(2.0 ** int(np.ceil(np.log2(peak) - 1e-9)))
        elif name in costs:
            quantizer.scale.mul_(2.0 ** costs[name].coarser)
    params = current_params(stepped)
    if start.recipe.scale.npu is not None:
        params = refine_for_npu(model, start.plan, params, start.recipe.scale.npu)
    original = dict(start.original_weights)
    if original:
        origin, _, _ = _scaled(tuned_model(start.model, Tuned(start.original_weights, start.params)).model, powers)
        original = {name: np.asarray(array_of(origin.graph.initializers[name]), np.float32) for name in original}
    message = "balanced the channels of {count} tensors: the estimated cost of rounding fell by {fall}"
    final = replace(
        start,
        model=FloatModel(model, start.model.notes),
        params=params,
        original_weights=original,
        notes=(*start.notes, Note.of(message, count=len(powers), fall=fall)),
    )
    return build_in_place_of(module, final, weights)


def _scaled(source: ir.Model, powers: Mapping[str, Whole]) -> tuple[ir.Model, dict[str, np.ndarray], set[str]]:
    """Return a copy with scaled channels, the changed constants of multiplications, and the changed weights."""
    model = source.clone()
    names = FreshNames(model)
    constants, weights = [], set[str]()
    for target, fold in _folds(model):
        if (target.value.name or "") not in powers:
            continue
        factors = within_span(np.exp2(-powers[target.value.name or ""].astype(float)), fold)
        constants += [constant for edit in fold.restored for constant in edit.constants]
        for layer in target.layers:
            scaled = layer.layout.scaled(array_of(layer.weight), np.ones(layer.layout.outputs), factors)
            layer.weight.const_value = tensor_from_array(scaled, layer.weight.name or "")
            weights.add(layer.weight.name or "")
        fold.apply(factors, names)
        weights |= {edit.layer.weight.name or "" for edit in fold.makers}
    return rebuilt(model), {value.name or "": array_of(value) for value in constants}, weights
