"""The stage calls from a float model to a quantized one, in order."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import quantry
from quantry.data.arrays import SequenceSource
from quantry.data.calibration_data import CalibrationData
from quantry.emit import emit, place_bodies
from quantry.errors import DataError, ModelError, StageError
from quantry.evaluate import EXACT, Arithmetic, Evaluation, GuardReport, evaluate, guard
from quantry.graph.bodies import BodyPlace, states_of
from quantry.graph.float_model import FloatModel
from quantry.graph.load import ModelSource
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import Handle, Memo
from quantry.mix import MixInputs, Score, run_mix
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import BodyCalls, Needs, Statistics, body_as_model, body_calls, observe
from quantry.plan import (
    FollowedNames,
    InsidePlan,
    final_pools,
    kept_by_choice,
    names_are_found,
    plan,
    planned_bodies,
    recipe_inside,
    recipe_outside,
)
from quantry.prepare import convert, named_model, prepare
from quantry.recipe import Distill, EqualizeOptions, Recipe, Selection, to_plain
from quantry.scale import scale
from quantry.stages import REWRITES
from quantry.tune import Tuned, on_this_machine, tune, tuned_model, tuned_params

DataLike = CalibrationData | Callable[[], CalibrationData]
"""Calibration data, or a function that opens it, called only if a stage reads the data."""

EVALUATION_STATISTICS = 32
"""Evaluation samples that are observed to see whether the ranges hold for them."""


@dataclass(frozen=True)
class Stages:
    """Handles for the result of each stage; a handle loads its value on first use.

    Attributes:
        prepared: The user's model, cleaned; it computes the same outputs.
        equalized: The model that was quantized: ``prepared`` after conversions for the target and equalization, if any.
        statistics: What was observed of the activations; None if no scale had to be found in data.
        plan: Which tensors are quantized, to what.
        params: Scales and zero points, after the last tuning step.
        quantized: The quantized model.
        written: The float model that ``quantized`` was written from, with tuned weights.
        tuned: The result of each tuning step.
        noted: Every result whose notes the user should see, in the order they are shown.
    """

    prepared: Handle[FloatModel]
    equalized: Handle[FloatModel]
    statistics: Handle[Statistics] | None
    plan: Handle[QuantPlan]
    params: Handle[QuantParams]
    quantized: Handle[QuantizedModel]
    written: Handle[FloatModel]
    tuned: tuple[Handle[Tuned], ...] = ()
    noted: tuple[Handle[Any], ...] = ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of all stages."""
        # Each stage returns its own notes only, so that they depend on nothing but the stage's key.
        return tuple(note for handle in self.noted for note in handle.notes)


def run_prepare(source: ModelSource, recipe: Recipe, memo: Memo) -> Handle[FloatModel]:
    """Run the stage that needs no data, so that data can be checked against the model's inputs."""
    return memo.run(prepare, source, replace(recipe.prepare, npu=None))


def follow_names(source: ModelSource, prepared: Handle[FloatModel], recipe: Recipe) -> tuple[Recipe, tuple[Note, ...]]:
    """Return the recipe with names of the prepared graph instead of nodes that preparation folded or removed.

    Args:
        source: The user's model.
        prepared: What `run_prepare` returned for it.
        recipe: The recipe; it may name nodes of either graph.

    Returns:
        The recipe, and a note for each name that changed.
    """
    plan, mixed = recipe.plan, recipe.mix.mixed
    if plan.selection == Selection() and not (plan.layers or plan.tensors) and mixed is None:
        return recipe, ()
    names = FollowedNames(lambda: named_model(source), prepared.value.model.graph)
    return names.recipe(recipe), tuple(names.notes)


def run_convert(prepared: Handle[FloatModel], recipe: Recipe, memo: Memo) -> Handle[FloatModel]:
    """Run the conversions for the target, if any, except on nodes that stay float by choice: they run elsewhere."""
    npu, options = recipe.prepare.npu, recipe.plan
    if npu is None:
        return prepared
    chosen = options.selection != Selection() or options.layers
    kept = kept_by_choice(prepared.value, options) if chosen else ()
    if options.float_final_pools:
        kept = tuple(sorted({*kept, *final_pools(prepared.value.model.graph)}))
    converted = memo.run(convert, prepared, npu, kept)
    if not kept or names_are_found(converted.value, options):
        return converted
    # A selection may name a node that only the conversion of a float node creates; then that node is converted too.
    everywhere = memo.run(convert, prepared, npu)
    return everywhere if names_are_found(everywhere.value, options) else converted


@dataclass(frozen=True)
class Observed:
    """What is known about a model before types and scales are chosen.

    Attributes:
        models: The prepared model and what each rewrite made of it, in order; the last one is quantized.
        plan: Which tensors are quantized, to what, before mixed precision.
        statistics: What was observed of the activations; None if nothing needs it.
        recipe: The recipe of the main graph.
        inside: Results about bodies whose notes the user should see.
    """

    models: tuple[Handle[FloatModel], ...]
    plan: Handle[QuantPlan]
    statistics: Handle[Statistics] | None
    recipe: Recipe
    inside: tuple[Handle[Any], ...] = ()


def run_observe(prepared: Handle[FloatModel], data: DataLike, recipe: Recipe, memo: Memo) -> Observed:
    """Run the stages that rewrite, plan and observe the float model; `run_quantize` begins with them.

    Args:
        prepared: What `run_prepare` returned.
        data: Calibration data, or a function that opens it.
        recipe: Options of every stage.
        memo: Stores and reuses results.
    """
    data = _limited(data, recipe)
    bodies = run_bodies(prepared, data, recipe, memo)
    recipe = recipe_outside(recipe, bodies.plans)
    models = _run_equalize(bodies.model, data, recipe, memo)
    planned = memo.run(plan, models[-1], recipe.plan, bodies.plans)
    inside = any(isinstance(made, QuantPlan) for _, made in bodies.plans)
    needed = planned.value.needs_calibration or recipe.mix.mixed is not None or inside
    statistics = memo.run(observe, models[-1], _opened(data), recipe.observe) if needed else None
    return Observed(models, planned, statistics, recipe, bodies.noted)


@dataclass(frozen=True)
class Bodies:
    """The bodies of control flow after they were quantized.

    Attributes:
        model: The prepared model with quantized bodies; its main graph is still float.
        plans: The plan of each body, or why its activations stay float.
        noted: Results whose notes the user should see.
    """

    model: Handle[FloatModel]
    plans: tuple[InsidePlan, ...] = ()
    noted: tuple[Handle[Any], ...] = ()


def run_bodies(prepared: Handle[FloatModel], data: DataLike, recipe: Recipe, memo: Memo) -> Bodies:
    """Quantize the bodies of If, Loop and Scan, each as a model of its own, on what it reads while the model runs.

    Args:
        prepared: What `run_prepare` returned, or a body as a model, which may have bodies too.
        data: Calibration data, or a function that opens it.
        recipe: Options of every stage.
        memo: Stores and reuses results.
    """
    graph = prepared.value.model.graph
    places = planned_bodies(graph, recipe)
    if not places:
        return Bodies(prepared)
    # Types without scales need no data, unless the weights are tuned or rewritten.
    needed = recipe.plan.activation.dtype.has_scale or recipe.tune.steps or recipe.equalize != EqualizeOptions()
    calls = memo.run(body_calls, prepared, _opened(data), recipe.observe) if needed else None
    plans: list[InsidePlan] = []
    made: list[tuple[BodyPlace, Handle[QuantizedModel]]] = []
    noted: list[Handle[Any]] = [] if calls is None else [calls]
    for place in places:
        reason = None if calls is None else calls.value.reasons.get(place)
        if reason is None:
            try:
                stages = _run_body(prepared, place, calls, recipe, memo)
            except (DataError, ModelError, StageError) as error:
                reason = f"quantizing it failed: {error}"
        if reason is not None:
            plans.append((place, reason))
            continue
        plans.append((place, stages.plan.value))
        made.append((place, stages.quantized))
        noted += [handle for handle in stages.noted if handle is not stages.quantized]
    model = memo.run(place_bodies, prepared, tuple(made)) if made else prepared
    return Bodies(model, tuple(plans), tuple(noted))


def _run_body(
    prepared: Handle[FloatModel], place: BodyPlace, calls: Handle[BodyCalls] | None, recipe: Recipe, memo: Memo
) -> Stages:
    graph = prepared.value.model.graph
    body = memo.run(body_as_model, prepared, place, calls)
    inside = recipe_inside(recipe, graph, body.value.model.graph, states_of(graph, place))
    seen = () if calls is None else calls.value.calls[place]
    return run_quantize(body, lambda: CalibrationData(SequenceSource(seen), body.value.inputs), inside, memo)


def run_quantize(
    prepared: Handle[FloatModel], data: DataLike, recipe: Recipe, memo: Memo, score: Score | None = None
) -> Stages:
    """Run the stages from the prepared model to the quantized one.

    Args:
        prepared: What `run_prepare` returned.
        data: Calibration data, or a function that opens it.
        recipe: Options of every stage.
        memo: Stores and reuses results.
        score: A function of the outputs, for mixed precision with the goal `WithinDrop`.

    Returns:
        Handles for all results.
    """
    observed = run_observe(prepared, data, recipe, memo)
    data, metadata, recipe = _limited(data, recipe), model_metadata(recipe), observed.recipe
    equalized, planned, statistics = observed.models[-1], observed.plan, observed.statistics
    if recipe.mix.mixed is not None:
        given = MixInputs(equalized, statistics or Statistics({}, 0), planned, _opened(data))
        planned = run_mix(memo, given, recipe, score)
    params = memo.run(scale, equalized, statistics or Statistics({}, 0), planned, recipe.scale)
    plans = dict.fromkeys((observed.plan, planned))  # both have notes if types were mixed
    noted: list[Handle[Any]] = [prepared, *observed.inside, *observed.models[1:], *plans, params]
    written, tuned = equalized, []
    for step in map(on_this_machine, recipe.tune.steps):
        # Distillation trains towards the user's model, even where the target replaces some of its operators.
        teacher = prepared if isinstance(step, Distill) else equalized
        tuned.append(memo.run(tune, teacher, written, planned, params, _opened(data), step))
        written = memo.run(tuned_model, written, tuned[-1])
        params = memo.run(tuned_params, written, planned, tuned[-1], recipe.scale.npu)
        noted.append(params)
    quantized = memo.run(emit, written, planned, params, recipe.emit, metadata)
    noted += [*tuned, quantized]
    return Stages(prepared, equalized, statistics, planned, params, quantized, written, tuple(tuned), tuple(noted))


def _run_equalize(
    prepared: Handle[FloatModel], data: DataLike, recipe: Recipe, memo: Memo
) -> tuple[Handle[FloatModel], ...]:
    """Run conversions for the target and rewrites that keep the model's function.

    Returns:
        The prepared model and what each stage made of it, in order.
    """
    models = [prepared]
    converted = run_convert(prepared, recipe, memo)
    if converted is not prepared:
        models.append(converted)
    for rewrite in REWRITES:
        if not rewrite.is_in(recipe):
            continue
        model = models[-1]
        seen: tuple[Handle[Statistics], ...] = ()
        if rewrite.observes:
            needs = Needs() if rewrite.needs is None else rewrite.needs(model.value, recipe)
            if rewrite.needs is not None and not needs.channels:
                continue  # there is nothing to rewrite
            seen = (memo.run(observe, model, _opened(data), recipe.observe, needs),)
        models.append(memo.run(rewrite.stage, model, *seen, *rewrite.arguments(recipe)))
    return tuple(models)


def run_evaluate(
    stages: Stages, data: DataLike, recipe: Recipe, memo: Memo, arithmetic: Arithmetic = EXACT
) -> Handle[Evaluation]:
    """Compare the quantized model, computed with an arithmetic, with the prepared float model on data."""
    return memo.run(evaluate, stages.prepared, stages.quantized, _opened(data), recipe.evaluate, arithmetic)


def run_evaluation_statistics(stages: Stages, data: DataLike, recipe: Recipe, memo: Memo) -> Handle[Statistics]:
    """Observe the model that was quantized on some of the evaluation data."""
    return memo.run(observe, stages.equalized, _opened(data).take(EVALUATION_STATISTICS), recipe.observe)


def run_guard(
    stages: Stages, data: DataLike, recipe: Recipe, memo: Memo, arithmetic: Arithmetic = EXACT
) -> Handle[GuardReport] | None:
    """Compare the quantized model, computed with an arithmetic, with the float model on a few samples.

    Returns:
        The report; None if the guard is switched off, or if nothing was calibrated.
    """
    if not recipe.evaluate.guard or stages.statistics is None:
        return None
    few = _opened(data).take(recipe.evaluate.guard)
    models = stages.prepared, stages.equalized
    return memo.run(guard, models, stages.quantized, (stages.plan, stages.params), stages.statistics, few, arithmetic)


def calibration_samples(data: CalibrationData, recipe: Recipe) -> CalibrationData:
    """Return the samples that a recipe calibrates and tunes on; the only place that applies ``observe.samples``."""
    return data if recipe.observe.samples is None else data.take(recipe.observe.samples)


def _limited(data: DataLike, recipe: Recipe) -> DataLike:
    # Data that no stage reads is never opened, so the limit is applied on opening.
    return lambda: calibration_samples(_opened(data), recipe)


def _opened(data: DataLike) -> CalibrationData:
    return data if isinstance(data, CalibrationData) else data()


def model_metadata(recipe: Recipe) -> dict[str, str]:
    """Return the metadata entries of a recipe's model."""
    # The recipe's name and its evaluation do not change the model, so they must not change its bytes. Options with
    # their default value are omitted: they read back the same, and options that later releases add change no bytes.
    written, defaults = to_plain(recipe), to_plain(Recipe())
    plain: dict[str, Any] = {"version": written["version"]}
    for section in written.keys() - {"name", "target", "evaluate", "version"}:
        options = {key: value for key, value in written[section].items() if value != defaults[section][key]}
        if options:
            plain[section] = options
    target = {"quantry.target": recipe.target} if recipe.target else {}
    return {"quantry.recipe": json.dumps(plain, sort_keys=True), **target, "quantry.version": quantry.__version__}
