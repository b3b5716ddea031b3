"""Scale whole tensors so that power-of-two scales fit them.

::

    y = W2 Relu(W1 x + b1)      =      y = (W2 / f) Relu(f W1 x + f b1)        for every f > 0

A power-of-two scale wastes up to half of its range. A factor between 1 and 2 for each tensor removes that loss, but it
moves the ranges of the weights on both sides as well, so all factors are chosen together: each tensor, weight and bias
has an estimated rounding error that depends on its own factor only, and the factors that make the sum small are found
one after the other. Tensors that an Add, a Concat or a pool connects share a factor. A factor passes a gate, such as
SiLU, if a constant multiplies what its function reads, as joint equalization writes it (`gates`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer, store_array, store_input
from quantry.equalize.types import Types
from quantry.facts.operators import LINEAR, STANDARD_DOMAINS, Family, facts
from quantry.graph.edit import FreshNames, constant_of
from quantry.graph.float_model import FloatModel
from quantry.graph.joined import Joined
from quantry.graph.segments import values_used
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.numerics.histogram import TensorStats, mean_square
from quantry.numerics.rounding import round_and_clip
from quantry.observe import Statistics
from quantry.recipe import FitPowers, PerTensor, PowerOfTwoScale, TensorSpec
from quantry.runtime.environment import depends_on

_SUMS = ("Add", "Sub", "Sum", "Max", "Min", "Concat", "Mean")
"""Operators whose result has the factor of their operands, if all have the same."""

_SAMPLED = 1 << 16
"""Values of a weight that its error is estimated from."""

_SHIFTS = (1, 0, -1, -2)
"""Exponents of candidate steps, relative to the step that covers the largest value."""

_Entry = TypeVar("_Entry")

_GAIN = 0.01
"""Smaller gains of the estimated error change nothing."""


def _are_powers(*specs: TensorSpec) -> bool:
    return all(isinstance(spec.scale, PowerOfTwoScale) for spec in specs)


@stage(name="fit_powers", version=2, environment=depends_on("onnx_ir", "numpy"))
def fit_powers(
    model: FloatModel,
    statistics: Statistics,
    options: FitPowers,
    types: Types,
) -> FloatModel:
    """Return a model that computes the same, whose tensors fill the ranges of power-of-two scales better.

    Args:
        model: The model; it is not modified.
        statistics: Its statistics.
        options: How to search.
        types: Types of the model's tensors.
    """
    if types.activation is None or not types.all_integers or not _are_powers(types.activation, types.weight):
        note = "power-of-two fit: nothing was changed, because not all scales are powers of two"
        return FloatModel(model.model, (note,))
    copy = model.model.clone()
    groups, reasons = find_groups(copy)
    fit = _Fit(groups, statistics, options.candidates)
    fit.add_errors(types)
    before, after = fit.search(options.sweeps)
    left = (f"no power-of-two fit of {count} tensors: {reason}" for reason, count in sorted(reasons.items()))
    if after > before * (1 - _GAIN):
        return FloatModel(model.model, ("power-of-two fit: no factor would help", *left))
    names = FreshNames(copy)
    for group, exponent in zip(groups, fit.exponents, strict=True):
        group.multiply(float(np.exp2(exponent)), names)
    changed = sum(bool(exponent) for exponent in fit.exponents)
    summary = (
        f"power-of-two fit multiplied {changed} of {len(groups)} groups of tensors by a factor each; estimated "
        f"rounding error {before:.3g} -> {after:.3g}"
    )
    return FloatModel(rebuilt(copy), (summary, *left))


@dataclass(eq=False)
class Group:
    """Tensors that must have the same factor.

    Attributes:
        values: The tensors.
        makers: Layers that compute some of them; their weight and bias take the factor.
        readers: Layers that read some of them; their weight takes its inverse.
        constants: Constant operands with the factor, each with the node that reads it and its place there.
        inverse: Constants that multiply what a gate's function reads (`gates`); they take the inverse of the factor.
    """

    values: list[ir.Value] = field(default_factory=list)
    makers: list[LinearLayer] = field(default_factory=list)
    readers: list[LinearLayer] = field(default_factory=list)
    constants: list[tuple[ir.Node, int]] = field(default_factory=list)
    inverse: list[tuple[ir.Node, int]] = field(default_factory=list)

    def multiply(self, factor: float, names: FreshNames) -> None:
        """Multiply the tensors by a factor; the model computes the same.

        Args:
            factor: The factor.
            names: For constants that other nodes read too.
        """
        if factor == 1.0:
            return
        for layer in self.makers:
            _store_product(layer.weight, factor)
            if layer.bias is not None:
                _store_product(layer.bias, factor)
        for layer in self.readers:
            _store_product(layer.weight, 1.0 / factor)
        operands = [(place, factor) for place in self.constants] + [(place, 1.0 / factor) for place in self.inverse]
        for (node, index), times in operands:
            array = constant_of(node.inputs[index])
            if array is not None:
                store_input(node, index, array.astype(np.float64) * times, names)


def _store_product(value: ir.Value, factor: float) -> None:
    array = array_of(value)
    store_array(value, (array.astype(np.float64) * factor).astype(array.dtype))


def find_groups(model: ir.Model) -> tuple[list[Group], Counter[str]]:
    """Return the groups of tensors that a factor can multiply, in the order of the graph, and others by reason.

    Args:
        model: The model.
    """
    walk = _Walk(model)
    return walk.groups(), walk.reasons()


class _Walk:
    """Joins tensors that must have the same factor, and keeps the factor of others at 1."""

    def __init__(self, model: ir.Model) -> None:
        self._tensors: Joined[ir.Value] = Joined()
        self._kept: dict[ir.Value, str] = {}
        self._made: list[tuple[LinearLayer, ir.Value]] = []
        self._read: list[tuple[LinearLayer, ir.Value]] = []
        self._constants: list[tuple[tuple[ir.Node, int], ir.Value]] = []
        self._inverse: list[tuple[tuple[ir.Node, int], ir.Value]] = []
        self._biases: set[ir.Node] = set()
        for value in (*model.graph.inputs, *model.graph.outputs):
            self._keep(value, "it is an input or output of the model")
        for node in model.graph:
            self._visit(node)

    def groups(self) -> list[Group]:
        """Return the groups without a kept tensor that a layer computes, and only such."""
        kept = {self._tensors.root(value) for value in self._kept}
        found: dict[ir.Value, Group] = {}
        for value in self._tensors:
            root = self._tensors.root(value)
            if root not in kept:
                found.setdefault(root, Group()).values.append(value)
        self._share(found, self._made, lambda group: group.makers)
        self._share(found, self._read, lambda group: group.readers)
        self._share(found, self._constants, lambda group: group.constants)
        self._share(found, self._inverse, lambda group: group.inverse)
        return [group for group in found.values() if group.makers]

    def _share(
        self,
        groups: Mapping[ir.Value, Group],
        entries: Iterable[tuple[_Entry, ir.Value]],
        list_of: Callable[[Group], list[_Entry]],
    ) -> None:
        """Give each entry to the group of its tensor, if there is one.

        Args:
            groups: By the root of their tensors.
            entries: What a factor changes, each with the tensor that has the factor.
            list_of: The list of a group that the entries belong to.
        """
        for entry, value in entries:
            if (group := groups.get(self._tensors.root(value))) is not None:
                list_of(group).append(entry)

    def reasons(self) -> Counter[str]:
        """Return the number of tensors that keep their factor, by reason."""
        return Counter(self._kept.values())

    def _visit(self, node: ir.Node) -> None:
        if node in self._biases:
            return
        standard = node.domain in STANDARD_DOMAINS and not any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        )
        if standard and node.op_type in LINEAR and isinstance(layer := linear_layer(node), LinearLayer):
            self._visit_layer(layer)
        elif standard and node.op_type == "Clip":
            self._visit_clip(node)
        elif standard and node.op_type in _SUMS:
            self._visit_sum(node)
        elif standard and node.op_type == "Mul":
            self._visit_product(node)
        elif standard and self._is_homogeneous(node):
            self._join([node.inputs[0], *node.outputs])
            self._keep_all(node.inputs[1:], f"{node.op_type} reads it as a setting")
        else:
            self._keep_all((*values_used(node), *node.outputs), f"{node.op_type} does not pass a factor on")

    def _visit_layer(self, layer: LinearLayer) -> None:
        source = layer.node.inputs[0]
        if source is None:
            return
        self._tensors.add(source)
        self._read.append((layer, source))
        self._join([layer.node.outputs[0], layer.output])
        self._made.append((layer, layer.output))
        added = layer.output.producer()
        if added is not None and added is not layer.node:
            self._biases.add(added)

    def _visit_clip(self, node: ir.Node) -> None:
        self._join([node.inputs[0], *node.outputs])
        for index, bound in enumerate(node.inputs[1:], start=1):
            if bound is None:
                continue
            constant = constant_of(bound)
            if constant is None:
                self._keep(node.outputs[0], "the bounds of Clip are computed")
            elif np.isfinite(constant).all() and np.abs(constant).max(initial=0.0) < np.finfo(np.float32).max / 4:
                self._constants.append(((node, index), node.outputs[0]))

    def _visit_product(self, node: ir.Node) -> None:
        computed = [value for value in node.inputs if value is not None and constant_of(value) is None]
        # The result of a gate's function has no factor, so the product has that of the other operand.
        free = [value for value in computed if value not in self._kept]
        if len(free) != 1:
            self._keep_all((*computed, *node.outputs), "Mul does not pass a factor on")
        elif len(computed) == 1 and _feeds_functions(node):
            index = next(index for index, value in enumerate(node.inputs) if value is not free[0])
            self._tensors.add(free[0])
            self._inverse.append(((node, index), free[0]))
            self._keep(node.outputs[0], "the function of a gate reads it")
        else:
            self._join([free[0], *node.outputs])

    def _visit_sum(self, node: ir.Node) -> None:
        self._join([*(value for value in node.inputs if constant_of(value) is None), *node.outputs])
        for index, value in enumerate(node.inputs):
            if constant_of(value) is not None:
                self._constants.append(((node, index), node.outputs[0]))

    @staticmethod
    def _is_homogeneous(node: ir.Node) -> bool:
        row = facts(node)
        if not row.homogeneous:
            return False
        if row.family is Family.PADDING:
            fill = constant_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(())
            return fill is not None and not fill.any()
        return row.family is not Family.RESIZE or "extrapolation_value" not in node.attributes

    def _keep_all(self, values: Iterable[ir.Value | None], reason: str) -> None:
        for value in values:
            if value is not None and constant_of(value) is None:
                self._keep(value, reason)

    def _keep(self, value: ir.Value, reason: str) -> None:
        self._tensors.add(value)
        self._kept.setdefault(value, reason)

    def _join(self, values: Sequence[ir.Value | None]) -> None:
        self._tensors.join(value for value in values if value is not None)


@dataclass(frozen=True, eq=False)
class _Error:
    """Rounding error of one tensor, weight or bias for each exponent of its factor.

    Attributes:
        plus: Number of the group whose exponent counts, or -1.
        minus: Number of the group whose exponent is subtracted, or -1.
        table: (candidates,) errors relative to the signal; the exponents are 0, 1/candidates and so on. An octave
            further the errors are the same.
    """

    plus: int
    minus: int
    table: np.ndarray


class _Fit:
    """Searches exponents of factors with a small sum of errors."""

    def __init__(self, groups: Sequence[Group], statistics: Statistics, candidates: int) -> None:
        self._groups, self._statistics, self._count = groups, statistics, candidates
        self._steps = np.zeros(len(groups), np.int64)
        self._errors: list[_Error] = []

    @property
    def exponents(self) -> np.ndarray:
        """Binary logarithms of the factors, from -1/2 to 1/2."""
        centred = (self._steps + self._count // 2) % self._count - self._count // 2
        result: np.ndarray = centred / self._count
        return result

    def add_errors(self, types: Types) -> None:
        """Estimate the errors of all tensors, weights and biases.

        Args:
            types: Types of the model's tensors.
        """
        activation, weight, bias = types.activation, types.weight, types.own_bias
        assert activation is not None
        made = {layer: number for number, group in enumerate(self._groups) for layer in group.makers}
        read = {layer: number for number, group in enumerate(self._groups) for layer in group.readers}
        for number, group in enumerate(self._groups):
            for value in group.values:
                stats = self._statistics.tensors.get(value.name or "")
                if stats is not None and stats.finite_count and is_rounded(value, types.fused_activations):
                    self._errors.append(_Error(number, -1, self._of_activation(stats, activation)))
            for node, index in group.inverse:
                constant = constant_of(node.inputs[index])
                assert constant is not None
                rows = constant.astype(np.float64).reshape(1, -1)
                self._errors.append(_Error(-1, number, self._of_rows(rows, activation, float((rows**2).mean()))))
        for layer in {**made, **read}:
            plus, minus = made.get(layer, -1), read.get(layer, -1)
            self._errors.append(_Error(plus, minus, self._of_weight(layer, weight)))
            if bias is not None and layer.bias is not None and plus >= 0:
                table = self._of_bias(layer, bias)
                if table is not None:
                    self._errors.append(_Error(plus, -1, table))

    def search(self, sweeps: int) -> tuple[float, float]:
        """Choose one exponent after the other; return the sum of errors before and after.

        Args:
            sweeps: Largest number of passes over all groups.
        """
        touching: dict[int, list[_Error]] = {}
        for error in self._errors:
            for number in {error.plus, error.minus} - {-1}:
                touching.setdefault(number, []).append(error)
        before = self._total()
        for _ in range(sweeps):
            changed = False
            for number, errors in touching.items():
                totals = np.zeros(self._count)
                for error in errors:
                    totals += self._row(error, number)
                best = int(totals.argmin())
                if totals[best] < totals[self._steps[number]] * (1 - 1e-6):
                    self._steps[number], changed = best, True
            if not changed:
                break
        return before, self._total()

    def _row(self, error: _Error, number: int) -> np.ndarray:
        """Return an error for every exponent of one group, the others as they are."""
        steps = np.arange(self._count)
        plus = steps if error.plus == number else self._step(error.plus)
        minus = steps if error.minus == number else self._step(error.minus)
        result: np.ndarray = error.table[(plus - minus) % self._count]
        return result

    def _step(self, number: int) -> int:
        return 0 if number < 0 else int(self._steps[number])

    def _total(self) -> float:
        return sum(
            float(error.table[(self._step(error.plus) - self._step(error.minus)) % self._count])
            for error in self._errors
        )

    def _of_activation(self, stats: TensorStats, spec: TensorSpec) -> np.ndarray:
        parts = stats.distribution()
        values, counts = np.abs((parts.lower + parts.upper) / 2), parts.counts
        energy = float(counts @ values**2)
        levels = 2 ** (spec.dtype.bits - 1) - 1

        def error(factor: float) -> float:
            scaled = values * factor
            totals = []
            for step in _steps(scaled.max(), levels):
                # A histogram does not say where in its step a value lies, so the mean over all places counts.
                inside = np.where(scaled < step / 2, scaled**2, step**2 / 12)
                outside = scaled - step * levels
                totals.append(float(counts @ np.where(outside > 0, outside**2, inside)))
            return min(totals) / factor**2 / energy

        return self._table(error) if energy else np.zeros(self._count)

    def _of_weight(self, layer: LinearLayer, spec: TensorSpec) -> np.ndarray:
        rows = layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))
        if isinstance(spec.granularity, PerTensor):
            rows = rows.reshape(1, -1)
        else:
            rows = rows.reshape(layer.layout.outputs, -1)
        rows = rows[:, :: max(1, rows.size // _SAMPLED)].astype(np.float64)
        return self._of_rows(rows, spec, float((rows**2).mean()))

    def _of_bias(self, layer: LinearLayer, spec: TensorSpec) -> np.ndarray | None:
        assert layer.bias is not None
        stats = self._statistics.tensors.get(layer.output.name or "")
        if stats is None or not stats.finite_count:
            return None
        return self._of_rows(array_of(layer.bias).astype(np.float64).reshape(1, -1), spec, mean_square(stats))

    def _of_rows(self, rows: np.ndarray, spec: TensorSpec, energy: float) -> np.ndarray:
        """Return the errors of constants, each row with a scale of its own, relative to a mean square."""
        levels = 2 ** (spec.dtype.bits - 1) - 1
        peaks = np.abs(rows).max(axis=1, initial=0.0)

        def error(factor: float) -> float:
            scaled = rows * factor
            candidates = [
                ((scaled - round_and_clip(scaled / step[:, None], -levels - 1, levels) * step[:, None]) ** 2).mean(1)
                for step in _steps(peaks * factor, levels)
            ]
            return float(np.min(candidates, axis=0).mean()) / factor**2 / energy

        return self._table(error) if energy and peaks.any() else np.zeros(self._count)

    def _table(self, error: Callable[[float], float]) -> np.ndarray:
        return np.array([error(float(np.exp2(place / self._count))) for place in range(self._count)])


def _steps(peak: Any, levels: int) -> Iterator[Any]:
    """Yield power-of-two steps around the smallest one that covers a peak; smaller ones cut values off.

    Args:
        peak: The largest magnitude, or one per row.
        levels: Steps from zero to the end of the range.
    """
    exponent = np.ceil(np.log2(np.maximum(peak, np.finfo(np.float32).tiny) / levels))
    for shift in _SHIFTS:
        yield np.exp2(exponent + shift)


def _feeds_functions(node: ir.Node) -> bool:
    """Whether only functions of single elements read a product, so that its constant can undo a factor.

    Joint equalization writes such products in front of the functions of gates.
    """
    readers = [use.node for use in node.outputs[0].uses()]
    return (
        bool(readers)
        and not node.outputs[0].is_graph_output()
        and all(facts(reader).scalar is not None and not facts(reader).homogeneous for reader in readers)
    )


def is_rounded(value: ir.Value, fused: Collection[str]) -> bool:
    """Whether a tensor is likely to be rounded by itself: not in front of a fused function, no copy of another one.

    Args:
        value: The tensor.
        fused: Activation functions that are fused with the operator before them.
    """
    producer = value.producer()
    if producer is None or facts(producer).family is Family.MOVEMENT:
        return False
    readers = [use.node for use in value.uses()]
    return not (facts(producer).fuses and len(readers) == 1 and readers[0].op_type in fused)
