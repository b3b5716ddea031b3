"""What the channels of tensors cost when they are enlarged against the one step that serves them all.

A channel that is enlarged by 2^j is rounded with a step 2^j times as fine and is cut off 2^j times as early. In terms
of the values as they were, it is the step that changes, so that nothing is run again when channels are scaled.

Channels scaled so that the one step that serves them all costs the results least.

::

    y = f(w x)          w' = w * 2^e for each output channel,    y' = y * 2^e
    z = v y             v' = v / 2^e for each input channel,     z' = z

As in equalization the factors go where the function is kept, but they are chosen by what errors do to the results, for
activations, weights and biases alike: each tensor's channels are priced at powers of two (`channel_prices`), and tensor
after tensor gets the powers that are cheapest together with its own step and those of the weights that make and read
it. Factors are powers of two, so that the float model computes the same to the bit.
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

from quantry.equalize.channel_layout import ChannelLayout
from quantry.equalize.folding import Fold, Restore, ScaleLayer, find_fold
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.equalize.passage import Channels, passage
from quantry.equalize.smooth import Site, find_sites, within_span
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt, tensor_from_array
from quantry.numerics.power_of_two import nearest_exponent
from quantry.numerics.rounding import round_and_clip
from quantry.recipe import SmoothQuant
from quantry.scale.npu import refine_for_npu
from quantry.torchfront.error_costs import (
    Candidates,
    Importance,
    candidate_errors,
    check_scales_are_free,
    fake_quantizers,
    price_errors,
)
from quantry.torchfront.fake_quantizer import FakeQuantizer
from quantry.torchfront.freezing import current_params
from quantry.torchfront.module_definition import ModuleDefinition
from quantry.torchfront.quantized_module import QuantizedModule, build_in_place_of
from quantry.torchfront.scale_choice import tied_scales
from quantry.tune import Tuned, tuned_model

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_SPAN = 6
_COARSER, _FINER = 4.0, 16.0
"""By what the cost grows with each power of two beyond those that were tried: by steps, and by what is cut off."""


@dataclass(eq=False)
class ActivationPrices:
    """What an activation costs, channel by channel.

    Attributes:
        quantizer: Its quantizer.
        costs: What was seen, [1 + 2 * span, channels], at powers of two from -span to span.
        enlarged: By which powers of two channels are enlarged, [channels].
        coarser: By which power of two the step is.
    """

    quantizer: FakeQuantizer
    costs: Floats = field(default_factory=lambda: np.zeros((1 + 2 * _SPAN, 0)))
    enlarged: Whole = field(default_factory=lambda: np.zeros(0, np.int64))
    coarser: int = 0

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add what errors of some values cost; channels are the second axis."""
        steps = Candidates.of(self.quantizer, 2.0 ** -np.arange(-_SPAN, _SPAN + 1))
        seen = candidate_errors(values, gradient, steps, 1 if values.dim() > 1 else None).numpy()
        if self.costs.shape[1] not in (0, seen.shape[1]):  # tensors of several widths share the step
            self.costs, seen = (part.sum(1, keepdims=True) for part in (self.costs, seen))
        self.costs = self.costs + seen if self.costs.size else seen
        self.enlarged = np.zeros(self.costs.shape[1], np.int64)

    @property
    def channels(self) -> int:
        """Number of channels; 1 where they differ, 0 where the results do not depend on the tensor."""
        return int(self.costs.shape[1])

    def at(self, power: int) -> Floats:
        """Return the cost of each channel when all are enlarged by a power of two, [channels]."""
        wanted = self.enlarged - self.coarser + power
        found = self.costs[np.clip(wanted + _SPAN, 0, 2 * _SPAN), np.arange(self.channels)]
        beyond = _FINER ** np.maximum(wanted - _SPAN, 0) * _COARSER ** np.maximum(-_SPAN - wanted, 0)
        return np.asarray(found * beyond)

    def total(self, power: int) -> float:
        """Return the cost of all channels when all are enlarged by a power of two."""
        return float(self.at(power).sum())


@dataclass(eq=False)
class ConstantPrices:
    """What a weight or a bias costs.

    Attributes:
        quantizer: Its quantizer.
        curvature: What a squared error of each of its numbers costs, in its own shape.
        values: Its numbers, [groups, outputs / groups, inputs / groups, kernel].
        outputs: By which powers of two output channels are enlarged, [outputs].
        inputs: The same of input channels, [inputs].
        coarser: By which power of two the step is.
        share: How much of the cost is left after rounding is tuned.
        placed: Whether the numbers are known.
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
        """Add what is seen of a batch."""
        self.curvature = self.curvature + gradient.square().double().cpu().numpy()

    def place(self, values: npt.NDArray[np.float32], layout: ChannelLayout) -> None:
        """Say what the numbers are and where their channels; the first word counts."""
        if self.placed:
            return
        self.placed = True
        self.values = layout.view(np.array(values, np.float64, order="C"))
        self.curvature = layout.view(np.ascontiguousarray(np.broadcast_to(self.curvature, values.shape)))
        self.outputs, self.inputs = np.zeros(layout.outputs, np.int64), np.zeros(layout.inputs, np.int64)

    def at(self, power: int, *, of_inputs: bool = False) -> Floats:
        """Return the cost of each output (or input) channel when all are enlarged by a power of two, [channels]."""
        axes = (1, 3) if of_inputs else (2, 3)
        return np.asarray(self._errors(power).sum(axes).reshape(-1))

    def total(self, power: int) -> float:
        """Return the cost of all numbers when all are enlarged by a power of two."""
        return float(self._errors(power).sum())

    def _errors(self, power: int) -> Floats:
        groups = self.values.shape[0]
        enlarged = self.outputs.reshape(groups, -1, 1, 1) + self.inputs.reshape(groups, 1, -1, 1)
        step = float(self.quantizer.scale) * np.exp2(self.coarser - power - enlarged)
        low, high = (limit - int(self.quantizer.zero_point) for limit in self.quantizer.limits)
        error = round_and_clip(self.values / step, low, high) * step - self.values
        return np.asarray(self.share * self.curvature * error * error)


def is_shared(part: FakeQuantizer) -> bool:
    """Whether one step serves all channels of a tensor."""
    return part.axis is None and torch.numel(part.scale) == 1


_REACH, _SETTLE, _SWEEPS = 4, 2, 8
_LEAST_GAIN = 0.003
_WEIGHT_SHARE, _BIAS_SHARE = 0.3, 0.7
"""What is left of the cost of weights and biases once GPTQ has rounded them."""

Prices = ActivationPrices | ConstantPrices


def balance_channels(
    module: QuantizedModule, batches: Iterable[Any], importance: Importance | None = None, *, seed: int = 0
) -> QuantizedModule:
    """Scale channels by powers of two so that rounding costs the results least; needs no labels.

    It is for tensors with one scale for all channels, as NPUs have them, and chooses their scales as well. The float
    model is kept to the bit. A factor goes only where it can: from the layer that reads a tensor through Relu, pooling,
    joins and the like into the layers that make it, but not through a function such as SiLU, unless ``SmoothQuant`` has
    put a multiplication before its Sigmoid. Weights start from those the module was quantized with.

    Args:
        module: What quantization after training returned, with scales that are not learned; it is left as it was.
        batches: Some batches of calibration data: tensors, or tuples whose first item is one. A few dozen pictures do.
        importance: What errors of the results cost; None takes the squared error of each result, relative to its size.
        seed: Of the random directions.

    Returns:
        A new module in evaluation mode; the last of ``definition.notes`` says what was done. Weights are rounded to
        nearest: `tune_weights` does better. Batch normalizations of layers that changed are folded.

    Raises:
        DataError: There are no batches.
        ModelError: The module is no quantized one, or is frozen.
        RecipeError: Scales are learned, and so are no longer to be chosen.

    Example:
        >>> quantized = balance_channels(quantizer.quantize_model(graph, pictures), pictures)  # doctest: +SKIP
        >>> quantized = tune_weights(quantized, pictures, [Gptq()])  # doctest: +SKIP
    """
    check_scales_are_free(module, "balance_channels")
    parts = {name: part for name, part in fake_quantizers(module).items() if is_shared(part)}
    prices: dict[str, Prices] = {
        name: ConstantPrices(part, _share(module.definition, name)) if part.constant else ActivationPrices(part)
        for name, part in parts.items()
    }
    price_errors(module, prices, batches, importance, seed)
    model = module.definition.model.model.clone()
    places = [place for found in _folds(model) if (place := _place(module.definition, prices, *found)) is not None]
    _place_others(model, prices)
    balance = _Balance(prices, tied_scales(module))
    before, after = balance.descend(places)
    return _rebuilt(module, prices, places, f"{1 - after / before if before else 0:.0%}")


@dataclass(eq=False)
class _Part:
    """A tensor that changes with a place's channels.

    Attributes:
        name: Its name.
        channels: Which of the place's channels are its own.
        role: 0 is divided with the place, 1 makes it, 2 reads it.
    """

    name: str
    channels: slice
    role: int


@dataclass(eq=False)
class _Place:
    """A tensor whose channels can be scaled.

    Attributes:
        name: The tensor.
        fold: How what makes it is scaled.
        parts: What changes with it.
        powers: By which powers of two its channels are enlarged, [channels].
    """

    name: str
    fold: Fold
    parts: tuple[_Part, ...]
    powers: Whole


class _Balance:
    """Finds the powers: place after place, together with the steps of the tensors there."""

    def __init__(self, prices: Mapping[str, Prices], tied: list[list[str]]) -> None:
        self._prices = prices
        self._groups = {name: [other for other in names if other in prices] for names in tied for name in names}

    def descend(self, places: list[_Place]) -> tuple[float, float]:
        """Choose powers and steps; return the cost with the best steps alone, and the cost at last."""
        for name in self._prices:
            self._settle(name)
        first = last = self._total()
        for _ in range(_SWEEPS):
            for place in places:
                self._improve(place)
            before, last = last, self._total()
            if last > (1.0 - _LEAST_GAIN) * before:
                break
        return first, last

    def _total(self) -> float:
        return sum(prices.total(0) for prices in self._prices.values())

    def _settle(self, name: str) -> None:
        """Give a tensor, and those that are tied to it, the cheapest step."""
        group = [self._prices[other] for other in self._groups.get(name, [name])]
        powers = range(-_SETTLE, _SETTLE + 1)
        best = min(powers, key=lambda power: (sum(prices.total(-power) for prices in group), abs(power)))
        for prices in group:
            prices.coarser += best

    def _improve(self, place: _Place) -> None:
        tables = [(part, self._table(part)) for part in place.parts]
        inside = {part.name for part in place.parts}
        tied = {other for name in inside for other in self._groups.get(name, [])} - inside
        steps = (-1, 0, 1)
        outside = {step: sum(self._prices[name].total(-step) for name in tied) for step in steps}
        now = _costs(tables, len(place.powers), (0, 0, 0))[_REACH].sum() + outside[0]
        found = [(_costs(tables, len(place.powers), chosen), chosen) for chosen in itertools.product(steps, repeat=3)]
        costs, chosen = min(found, key=lambda pair: float(pair[0].min(0).sum()) + outside[pair[1][0]])
        lawful = within_span(np.exp2(-(place.powers + costs.argmin(0) - _REACH).astype(float)), place.fold)
        moved = -nearest_exponent(lawful).astype(np.int64) - place.powers
        moved = np.clip(moved, -_REACH, _REACH)
        after = costs[moved + _REACH, np.arange(len(moved))].sum() + outside[chosen[0]]
        if after >= now:
            return
        self._move(place, moved, chosen)

    def _table(self, part: _Part) -> Floats:
        """Return what the channels of a part cost, [1 + 2 * (reach + 1), channels], by the power they are moved by."""
        prices = self._prices[part.name]
        powers = range(-_REACH - 1, _REACH + 2)
        if isinstance(prices, ConstantPrices):
            return np.stack([prices.at(power, of_inputs=part.role == 2) for power in powers])
        return np.stack([prices.at(power) for power in powers])

    def _move(self, place: _Place, moved: Whole, steps: tuple[int, ...]) -> None:
        place.powers = place.powers + moved
        coarser: dict[str, int] = {}
        for part in place.parts:
            prices, own = self._prices[part.name], moved[part.channels]
            if isinstance(prices, ActivationPrices):
                prices.enlarged = prices.enlarged + own
            elif part.role == 2:
                prices.inputs = prices.inputs - own
            else:
                prices.outputs = prices.outputs + own
            coarser |= dict.fromkeys(self._groups.get(part.name, [part.name]), steps[part.role])
        for name, step in coarser.items():
            self._prices[name].coarser += step
        for part in place.parts:
            self._settle(part.name)


def _costs(tables: list[tuple[_Part, Floats]], channels: int, steps: tuple[int, ...]) -> Floats:
    """Return what channels cost, [1 + 2 * reach, channels], by their power, with steps moved for each role."""
    costs = np.zeros((1 + 2 * _REACH, channels))
    for part, table in tables:
        turned = table[::-1] if part.role == 2 else table
        # A coarser step is the same as smaller channels; turned, the other way round.
        start = 1 + steps[part.role] if part.role == 2 else 1 - steps[part.role]
        costs[:, part.channels] += turned[start : start + 1 + 2 * _REACH]
    return costs


def _share(definition: ModuleDefinition, name: str) -> float:
    return _BIAS_SHARE if name in definition.plan.biases else _WEIGHT_SHARE


def _folds(model: ir.Model) -> list[tuple[Site, Fold]]:
    """Return the tensors of a model that can be divided without a further operator, in the order of the graph."""
    sites, _ = find_sites(model, SmoothQuant())
    found = [(site, find_fold(site.value, site.nodes, site.axis, site.channels)) for site in sites if site.axis == 1]
    return [
        (site, fold)
        for site, fold in found
        if isinstance(fold, Fold)
        and not fold.products
        and all(isinstance(edit, ScaleLayer | Restore) for edit in fold.edits)
    ]


def _place(definition: ModuleDefinition, prices: Mapping[str, Prices], site: Site, fold: Fold) -> _Place | None:
    """Return what changes with a tensor, or None where some of that cannot be priced."""
    ends = {edit.layer.output: edit.channels for edit in fold.makers}
    divided = _divided(site.value, 0, ends, definition)
    if divided is None:
        return None
    quantized = {name: channels for value, channels in divided for name in _quantizers(definition, value)}
    parts = [_Part(name, channels, 0) for name, channels in quantized.items()]
    everywhere = slice(0, site.channels)
    layers = [(edit.layer, edit.channels, 1) for edit in fold.makers]
    layers += [(layer, everywhere, 2) for layer in site.layers]
    for layer, channels, role in layers:
        names = _constants(layer, prices, with_bias=role == 1)
        if names is None:
            return None
        parts += [_Part(name, channels, role) for name in names]
    unknown = [part for part in parts if not _is_priced(prices.get(part.name), part)]
    if unknown:
        return None
    return _Place(site.value.name or "", fold, tuple(parts), np.zeros(site.channels, np.int64))


def _is_priced(prices: Prices | None, part: _Part) -> bool:
    width = part.channels.stop - part.channels.start
    return isinstance(prices, ConstantPrices) or (prices is not None and prices.channels == width)


def _constants(layer: LinearLayer, prices: Mapping[str, Prices], *, with_bias: bool) -> list[str] | None:
    """Return the priced constants of a layer and tell the prices where their channels are; None without a weight."""
    weight = prices.get(layer.weight.name or "")
    if not isinstance(weight, ConstantPrices):
        return None
    weight.place(array_of(layer.weight), layer.layout)
    names = [layer.weight.name or ""]
    bias = None if layer.bias is None else prices.get(layer.bias.name or "")
    if with_bias and layer.bias is not None and isinstance(bias, ConstantPrices):
        outputs = layer.layout.outputs
        if array_of(layer.bias).size != outputs:
            return None
        bias.place(array_of(layer.bias).reshape(-1), ChannelLayout(1, outputs, 1, input_first=False))
        names.append(layer.bias.name or "")
    return names


def _place_others(model: ir.Model, prices: Mapping[str, Prices]) -> None:
    """Tell the prices of constants that no place knows what these are, so that their steps are chosen too."""
    for name, value in model.graph.initializers.items():
        known = prices.get(name)
        if isinstance(known, ConstantPrices):
            known.place(array_of(value), ChannelLayout(1, 1, 1, input_first=False))


def _quantizers(definition: ModuleDefinition, value: ir.Value) -> list[str]:
    """Return the names of the quantizers that a tensor goes through."""
    plan, name = definition.plan, value.name or ""
    own = [plan.root(name)] if name in plan.activations else []
    return own + [label for label, conversion in plan.conversions.items() if conversion.tensor == name]


def _divided(
    value: ir.Value, start: int, ends: Mapping[ir.Value, slice], definition: ModuleDefinition
) -> list[tuple[ir.Value, slice]] | None:
    """Return the tensors from a value back to what its makers give, each with its channels; None without a way."""
    width = value.shape[1] if value.shape is not None and len(value.shape) > 1 else None
    producer = value.producer()
    if value in ends:
        return [(value, ends[value])] if ends[value].start == start else None
    original = None if producer is None else definition.originals.get(producer.name or "")
    if producer is None or not isinstance(width, int) or (original is not None and original.limit is not None):
        return None
    own = [(value, slice(start, start + width))]
    if producer.op_type == "Concat":
        for source in producer.inputs:
            found = None if source is None else _divided(source, start, ends, definition)
            if found is None:
                return None
            own += found
            start = found[0][1].stop
        return own
    through = producer.inputs if producer.op_type == "Mul" else producer.inputs[:1]
    if producer.op_type != "Mul" and passage(producer, Channels(1)) != Channels(1):
        return None
    ways = [_divided(source, start, ends, definition) for source in through if source is not None]
    return next((own + way for way in ways if way is not None), None)


def _rebuilt(module: QuantizedModule, prices: Mapping[str, Prices], places: list[_Place], fall: str) -> QuantizedModule:
    """Return a module with scaled channels and the steps that were chosen."""
    start = module.definition
    powers = {place.name: place.powers for place in places if place.powers.any()}
    model, constants, changed = _scaled(start.model.model, powers)
    stepped = copy.deepcopy(module)
    for name, part in fake_quantizers(stepped).items():
        if name in constants:
            peak = float(np.abs(constants[name]).max()) / (part.limits[1] * float(part.scale))
            part.scale.mul_(2.0 ** int(np.ceil(np.log2(peak) - 1e-9)))
        elif name in prices:
            part.scale.mul_(2.0 ** prices[name].coarser)
    params = current_params(stepped)
    if start.recipe.scale.npu is not None:
        params = refine_for_npu(model, start.plan, params, start.recipe.scale.npu)
    untuned = dict(start.untuned)
    if untuned:
        known, _, _ = _scaled(tuned_model(start.model, Tuned(start.untuned, start.params)).model, powers)
        untuned = {name: np.asarray(array_of(known.graph.initializers[name]), np.float32) for name in untuned}
    note = f"balanced the channels of {len(powers)} tensors: the estimated cost of rounding fell by {fall}"
    final = replace(
        start,
        model=FloatModel(model, start.model.notes),
        params=params,
        untuned=untuned,
        notes=(*start.notes, note),
    )
    return build_in_place_of(module, final, changed)


def _scaled(source: ir.Model, powers: Mapping[str, Whole]) -> tuple[ir.Model, dict[str, np.ndarray], set[str]]:
    """Return a copy with scaled channels, the constants of multiplications that changed, and changed weights."""
    model = source.clone()
    names = FreshNames(model)
    constants, changed = [], set[str]()
    for site, fold in _folds(model):
        if (site.value.name or "") not in powers:
            continue
        factors = within_span(np.exp2(-powers[site.value.name or ""].astype(float)), fold)
        constants += [constant for edit in fold.restored for constant in edit.constants]
        for layer in site.layers:
            scaled = layer.layout.scaled(array_of(layer.weight), np.ones(layer.layout.outputs), factors)
            layer.weight.const_value = tensor_from_array(scaled, layer.weight.name or "")
            changed.add(layer.weight.name or "")
        fold.apply(factors, names)
        changed |= {edit.layer.weight.name or "" for edit in fold.makers}
    return rebuilt(model), {value.name or "": array_of(value) for value in constants}, changed
