"""What the outputs would gain without a cause: the model runs with parts of it unrounded, or with corrected biases.

A rule that blames a tensor looks at that tensor alone. Whether its error reaches the outputs is another question, which
only a run without the error answers. Findings are ranked by this gain, and dropped where there is none.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.data.arrays import SequenceSource
from quantry.data.calibration_data import CalibrationData
from quantry.errors import QuantryError
from quantry.evaluate.levels import AS_GOOD, CERTAIN, VERY_CLOSE
from quantry.evaluate.metrics.metric import pair_outputs
from quantry.evaluate.output_layout import OutputLayout
from quantry.evaluate.tasks.float_agreement import Closeness
from quantry.execute.quantized_view import QuantizedView
from quantry.execute.simulation import simulate
from quantry.facts.operators import LINEAR, Family, of_family, operators_where, output_channel_axis
from quantry.graph.quant_plan import ActivationPlan, OwnRange, QuantPlan, SharedRange
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams
from quantry.pipeline import Stages
from quantry.recipe import BiasCorrection
from quantry.runtime.sessions import run_session, simulation_session
from quantry.tune import tune

_COPYING = operators_where(lambda row: row.copies is not None)
_JOINING = of_family(Family.JOIN)

Outputs = list[dict[str, NDArray[Any]]]

# The least share of the largest range for which a channel gets a scale; below it a channel is as good as zero.
_TINY = 1e-6


@dataclass(frozen=True)
class Gain:
    """What the outputs gain.

    Attributes:
        decibels: Gain of the signal-to-noise ratio in dB, ignoring what is above `AS_GOOD.decibels`.
        agreement: Gain of the share of decisions that are those of the float model; 0 without decisions.
    """

    decibels: float
    agreement: float = 0.0


@dataclass(frozen=True)
class Rest:
    """What the outputs would keep if no blamed tensor was rounded, in dB.

    Attributes:
        decibels: Without rounding these alone.
        float_weights: And with weights and biases in float; None for tuned weights, which make up for activations.
        float_activations: And with activations in float; None likewise.
    """

    decibels: float
    float_weights: float | None = None
    float_activations: float | None = None

    def __str__(self) -> str:
        line = f"without rounding these tensors the outputs would keep {self.decibels:.1f} dB"
        if self.decibels >= VERY_CLOSE.decibels or self.float_weights is None or self.float_activations is None:
            return line
        return (
            f"{line}; the rest is rounding in general: {self.float_weights:.1f} dB with weights in float, "
            f"{self.float_activations:.1f} dB with activations in float"
        )


class Counterfactual:
    """Runs variants of a quantized model on a few samples.

    Args:
        stages: The stages of the quantized model.
        feeds: The samples.
        emitted: Decibels of the written model on these samples, shape (n,).
        layout: What the axes of the outputs mean.
    """

    def __init__(
        self,
        stages: Stages,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        emitted: NDArray[np.float64],
        layout: OutputLayout,
    ) -> None:
        self._layout = layout
        self._stages = stages
        self._feeds = [dict(feed) for feed in feeds]
        self._emitted = float(np.mean(emitted[: len(feeds)]))
        self._known: dict[frozenset[str], Closeness | None] = {}

    @cached_property
    def is_able(self) -> bool:
        """Whether the simulation computes what the written model computes."""
        base = self._base
        return base is not None and abs(base.mean_decibels - self._emitted) <= CERTAIN

    def without_rounding(self, tensors: Iterable[str]) -> Gain | None:
        """Return the gain if activations, weights or biases are not rounded; None if it cannot be measured."""
        return _gain(self._base, self._unrounded(self._with_copies(tensors)))

    def in_float(self, tensors: Iterable[str]) -> Gain | None:
        """Return the gain if exactly these tensors are not rounded, though copies of them are; None if unknown.

        Tuned weights make up for rounding errors, so without these they tell nothing. They are then in float, before
        and after: what is compared is the rounding of activations, of which tuning removes little.

        Args:
            tensors: Activations, weights and biases.
        """
        if not self.is_able:
            return None
        plan = self._stages.plan.value
        constants = frozenset((*plan.weights, *plan.biases)) if self._stages.tuned else frozenset[str]()
        return _gain(self._unrounded(constants), self._unrounded(constants | frozenset(tensors)))

    def rest(self, tensors: Iterable[str]) -> Rest | None:
        """Return what is left if all blamed tensors are not rounded; None if it cannot be measured.

        Args:
            tensors: Activations, weights and biases that causes blame.
        """
        if not self.is_able:
            return None
        plan, blamed = self._stages.plan.value, self._with_copies(tensors)
        is_tuned = self._stages.written.digest != self._stages.equalized.digest
        kinds: tuple[Iterable[str], ...] = () if is_tuned else ((*plan.weights, *plan.biases), plan.activations)
        more: tuple[Iterable[str], ...] = ((), *kinds)
        ablations = [self._without(blamed | frozenset(names)) for names in more]
        # Conversions for the target are a cause of their own, so what is left is compared with the model after them.
        remaining = [
            self._closeness(self._converted, outputs).mean_decibels for outputs in ablations if outputs is not None
        ]
        return Rest(*remaining) if len(remaining) == len(more) else None

    def without_conversions(self) -> Gain | None:
        """Return the gain if the operators had not been replaced for the target."""
        outputs = self._simulated(self._stages.plan.value)
        return None if outputs is None else _gain(self._base, self._closeness(self._converted, outputs))

    def with_scales_per_channel(self) -> Gain | None:
        """Return the gain if each output channel of the weights of layers had a scale of its own."""
        plan = self._stages.plan.value
        rounded = dict(_rounded_by_channel(self._stages.written.value.model, plan, self._stages.params.value))
        outputs = self._simulated(_plan_without(plan, rounded), rounded)
        return None if outputs is None else _gain(self._base, self._closeness(self._reference, outputs))

    def with_corrected_biases(self, apart_from: Iterable[str] = ()) -> Gain | None:
        """Return the gain of a bias correction on the same samples.

        Args:
            apart_from: Tensors that are not rounded, with and without the correction: a shift that goes away with
                another cause is no cause of its own.
        """
        stages, tensors = self._stages, self._with_copies(apart_from)
        unrounded, plan = self._unrounded(tensors), _plan_without(stages.plan.value, tensors)
        data = CalibrationData(SequenceSource(self._feeds), stages.prepared.value.inputs)
        written, params = stages.written.value, stages.params.value
        tuned = tune(stages.equalized.value, written, plan, params, data, BiasCorrection())
        outputs = self._simulated(plan, tuned.weights, tuned.params)
        return None if outputs is None else _gain(unrounded, self._closeness(self._reference, outputs))

    def _with_copies(self, tensors: Iterable[str]) -> frozenset[str]:
        """Return tensors and what holds the same values: a copy that is rounded alike would lose the same again."""
        model = self._stages.written.value.model
        values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs) if value}
        queue = [values[name] for name in tensors if name in values]
        met = set(queue)
        while queue:
            value = queue.pop()
            readers = [use.node for use in value.uses() if use.node.op_type in (*_COPYING, *_JOINING)]
            near = [output for reader in readers for output in reader.outputs]
            producer = value.producer()
            if producer is not None and producer.op_type in _COPYING and producer.inputs[0] is not None:
                near.append(producer.inputs[0])
            new = [neighbour for neighbour in near if neighbour not in met]
            met.update(new)
            queue += new
        return frozenset(tensors) | {value.name for value in met if value.name}

    @cached_property
    def _base(self) -> Closeness | None:
        return self._unrounded(frozenset())

    @cached_property
    def _reference(self) -> Outputs:
        return self._run(self._stages.prepared.value.model)

    @cached_property
    def _converted(self) -> Outputs:
        return self._run(self._stages.equalized.value.model)

    def _unrounded(self, tensors: frozenset[str]) -> Closeness | None:
        if tensors not in self._known:
            outputs = self._without(tensors)
            self._known[tensors] = None if outputs is None else self._closeness(self._reference, outputs)
        return self._known[tensors]

    def _without(self, tensors: frozenset[str]) -> Outputs | None:
        """Return the outputs if tensors are not rounded; weights and biases then are those before any tuning."""
        plan = self._stages.plan.value
        initializers = self._stages.equalized.value.model.graph.initializers
        written = self._stages.written.value.model.graph.initializers
        # Tuning rounds weights itself, or moves them to make up for rounding.
        constants = {
            name: constant.numpy().astype(np.float32)
            for name in tensors & {*plan.weights, *plan.biases}
            if name in initializers and name in written and initializers[name].shape == written[name].shape
            if (constant := initializers[name].const_value) is not None
        }
        return self._simulated(_plan_without(plan, tensors), constants)

    def _simulated(
        self,
        plan: QuantPlan,
        constants: Mapping[str, NDArray[np.float32]] | None = None,
        params: QuantParams | None = None,
    ) -> Outputs | None:
        """Return the outputs of a variant; None if onnxruntime cannot run it."""
        scales = self._stages.params.value if params is None else params
        try:
            outputs = self._run(simulate(self._stages.written.value.model, plan, scales, constants).model)
        except QuantryError:
            return None
        # The simulation rounds a tensor in front of its readers, and outputs of the model have none.
        view = QuantizedView(plan, scales)
        return [{name: _rounded(view, name, values) for name, values in sample.items()} for sample in outputs]

    def _closeness(self, reference: Outputs, outputs: Outputs) -> Closeness:
        pairs = (
            {name: pair_outputs(ours[name], theirs[name]) for name in ours}
            for ours, theirs in zip(reference, outputs, strict=True)
        )
        return Closeness.of(pairs, self._layout)

    def _run(self, model: ir.Model) -> Outputs:
        session = simulation_session(model, interleaved=True)
        return [run_session(session, feed) for feed in self._feeds]


def _rounded(view: QuantizedView, name: str, values: NDArray[Any]) -> NDArray[Any]:
    quantizer = view.get(name)
    return values if quantizer is None else quantizer.round(values)


def _rounded_by_channel(
    model: ir.Model, plan: QuantPlan, params: QuantParams
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the weights that have one scale, rounded with a scale for each channel that covers as much of its range."""
    layers = [node for node in model.graph if node.op_type in LINEAR and len(node.inputs) > 1]
    for node in layers:
        value = node.inputs[1]
        name = "" if value is None else value.name or ""
        weight_params = params.tensors.get(name) if name in plan.weights else None
        constant = None if value is None else value.const_value
        if weight_params is None or weight_params.axis is not None or constant is None or len(constant.shape) < 2:
            continue
        weight = constant.numpy().astype(np.float32)
        axis = output_channel_axis(node, weight.ndim)
        ranges = np.abs(np.moveaxis(weight, axis, 0)).reshape(weight.shape[axis], -1).max(axis=1)
        scales = weight_params.scale * np.maximum(ranges / max(ranges.max(), _TINY), _TINY)
        zeros = np.broadcast_to(weight_params.zero_point, scales.shape)
        yield name, fake_quantize(weight, replace(weight_params, scale=scales, zero_point=zeros, axis=axis))


def _gain(reference: Closeness | None, ablated: Closeness | None) -> Gain | None:
    if reference is None or ablated is None:
        return None
    agreed = [(closeness.mean_agreement or 0.0) for closeness in (ablated, reference)]
    capped = [float(np.minimum(closeness.decibels, AS_GOOD.decibels).mean()) for closeness in (ablated, reference)]
    return Gain(capped[0] - capped[1], agreed[0] - agreed[1])


def _plan_without(plan: QuantPlan, tensors: Container[str]) -> QuantPlan:
    """Return a plan that leaves tensors in float and changes nothing else, so that all parameters stay valid."""
    activations: dict[str, ActivationPlan] = {}
    for name, planned in plan.activations.items():
        if name not in tensors:
            spec = plan.spec_of(name)
            lost = isinstance(planned, SharedRange) and planned.source in tensors
            activations[name] = OwnRange(spec) if lost and spec is not None else planned
    return replace(
        plan,
        activations=activations,
        weights={name: planned for name, planned in plan.weights.items() if name not in tensors},
        biases={name: planned for name, planned in plan.biases.items() if name not in tensors},
        conversions={
            name: conversion for name, conversion in plan.conversions.items() if conversion.tensor not in tensors
        },
    )
