"""The stage "scale": compute scale and zero point of every quantized tensor from statistics and weights."""

from functools import partial
from typing import Any

import numpy as np

from quantry.errors import InternalError, RecipeError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import DerivedBiasPlan, FixedRange, OwnBiasPlan, OwnRange, QuantPlan, WeightPlan
from quantry.memo import stage
from quantry.numerics.bias import derived_bias_params, overflow_note, with_room_for_bias
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.observe import Statistics
from quantry.recipe import MinMSE, PowerOfTwoScale, ScaleOptions
from quantry.runtime.environment import depends_on
from quantry.scale.activations import (
    activation_params,
    conversion_params,
    fixed_params,
    responses,
    unusual_values,
)
from quantry.scale.alignment import aligned
from quantry.scale.given import with_given, with_rules
from quantry.scale.kept_levels import with_kept_levels
from quantry.scale.npu import refine_for_npu
from quantry.scale.parameter_cache import cached_constant_params
from quantry.scale.weights import measure_constant


@stage(name="scale", version=13, environment=depends_on("numpy"))
def scale(model: FloatModel, statistics: Statistics, plan: QuantPlan, options: ScaleOptions) -> QuantParams:
    """Return scale and zero point of every tensor in the plan that has an integer type; other types need none.

    Args:
        model: The float model, for the values of weights and biases.
        statistics: The statistics of the activations.
        plan: The plan of each tensor.
        options: Calibration methods.

    Raises:
        DataError: An activation has no statistics or no finite value.
        RecipeError: A tensor is planned with a type that has no scale.
    """
    after_functions = isinstance(options.activation, MinMSE) and options.activation.after_functions
    functions = responses(model.model.graph, plan.activations) if after_functions else {}
    tensors = activation_params(plan.activations, statistics, options.activation, functions)
    if options.keep_levels:
        tensors = with_kept_levels(model.model.graph, plan, tensors)
    if options.align or options.together:
        tensors = aligned(model.model.graph, plan, tensors, options.align, options.together)
    tensors = _ruled_activations(plan, statistics, tensors, options)
    tensors |= conversion_params(plan, statistics, options.activation)
    tensors = with_given(tensors, plan, options.given, plan.conversions)
    tensors |= fixed_params(model.model.graph, plan, options.fixed)
    notes = list(unusual_values(plan.activations, statistics))
    for name, weight in plan.weights.items():
        if not weight.spec.dtype.has_scale:
            continue
        tensors[name] = cached_constant_params(
            model.model, name, weight.spec, weight.axis, options.weight, reduced=options.reduce_range
        )
    tensors |= _ruled_weights(model, plan, tensors, options)
    _make_room_for_biases(model, plan, tensors)
    for name, bias in plan.biases.items():
        if isinstance(bias, OwnBiasPlan) and not bias.spec.dtype.has_scale:
            continue
        if isinstance(bias, OwnBiasPlan):
            tensors[name] = cached_constant_params(model.model, name, bias.spec, None, options.weight)
        else:
            _check_has_scales(name, bias, plan)
            tensors[name] = _derived(name, bias, tensors)
            notes += measure_constant(model.model, name, partial(overflow_note, name=name, params=tensors[name]))
    params = QuantParams(with_given(tensors, plan, options.given, plan.biases), tuple(notes))
    if options.npu is None:
        return params
    weighed = statistics if options.weigh_shared else None
    return refine_for_npu(model.model, plan, params, options.npu, weighed)


def _ruled_activations(
    plan: QuantPlan, statistics: Statistics, tensors: dict[str, TensorParams], options: ScaleOptions
) -> dict[str, TensorParams]:
    if options.smallest_range or options.zero_point_at_an_end:
        tensors = with_rules(tensors, plan, partial(_seen, plan, statistics), options)
    return with_given(tensors, plan, options.given, plan.activations)


def _ruled_weights(
    model: FloatModel, plan: QuantPlan, tensors: dict[str, TensorParams], options: ScaleOptions
) -> dict[str, TensorParams]:
    weights = {name: tensors[name] for name in plan.weights if name in tensors}
    if options.smallest_range:
        weights = with_rules(weights, plan, partial(_stored, model, plan), options)
    return with_given(weights, plan, options.given, plan.weights)


def _seen(plan: QuantPlan, statistics: Statistics, name: str) -> tuple[float, float]:
    stats = statistics.tensors.get(plan.root(name))
    return (0.0, 0.0) if stats is None or not stats.count else (stats.minimum, stats.maximum)


def _stored(model: FloatModel, plan: QuantPlan, name: str) -> tuple[Any, Any]:
    axis = plan.weights[name].axis

    def ends(values: np.ndarray) -> tuple[Any, Any]:
        reduced = None if axis is None else tuple(index for index in range(values.ndim) if index != axis % values.ndim)
        return values.min(axis=reduced), values.max(axis=reduced)

    return measure_constant(model.model, name, ends)


def _make_room_for_biases(model: FloatModel, plan: QuantPlan, tensors: dict[str, TensorParams]) -> None:
    for name, bias in plan.biases.items():
        if (
            isinstance(bias, OwnBiasPlan)
            or bias.weight not in plan.weights
            or not {bias.input, bias.weight} <= tensors.keys()
        ):
            continue
        widen = partial(
            with_room_for_bias,
            source=tensors[bias.input],
            weight=tensors[bias.weight],
            power_of_two=isinstance(plan.weights[bias.weight].spec.scale, PowerOfTwoScale),
        )
        tensors[bias.weight] = measure_constant(model.model, name, widen)


def _check_has_scales(name: str, bias: DerivedBiasPlan, plan: QuantPlan) -> None:
    root = plan.activations[plan.root(bias.input)] if bias.input in plan.activations else None
    for source in (root, plan.weights.get(bias.weight)):
        if isinstance(source, OwnRange | FixedRange | WeightPlan) and not source.spec.dtype.is_integer:
            raise RecipeError(
                f"a derived bias needs integer types with scales, got {source.spec.dtype.value} for bias {name!r}; in "
                "the scale stage; use OwnBias or FloatBias"
            )


def _derived(name: str, bias: DerivedBiasPlan, tensors: dict[str, TensorParams]) -> TensorParams:
    missing = [source for source in (bias.input, bias.weight) if source not in tensors]
    if missing:
        raise InternalError(
            f"a derived bias needs parameters of its input and weight, got none for {missing} of bias {name!r}; in the "
            "scale stage"
        )
    return derived_bias_params(tensors[bias.input], tensors[bias.weight])
