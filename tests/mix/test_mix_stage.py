"""Mixed precision through the public function: promotion, demotion, goals and notes."""

import re
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from mixed_models import network, samples

import quantry
from quantry.errors import RecipeError, SelectionError
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import MemoryStore
from quantry.recipe import (
    BitOperationsBudget,
    DataType,
    EmitOptions,
    Goal,
    Greedy,
    LatencyBudget,
    LayerCount,
    LayerTarget,
    MixedPrecision,
    MixOptions,
    OwnBias,
    PlanOptions,
    QOperator,
    Recipe,
    SizeBudget,
    SizeShare,
    TensorShare,
    TensorSpec,
    WithinDrop,
    WithinError,
    from_yaml,
    to_yaml,
)

A8, A16 = TensorSpec(DataType.UINT8, symmetric=False), TensorSpec(DataType.INT16)
W8, W16 = TensorSpec(DataType.INT8), TensorSpec(DataType.INT16)
WIDE_BIAS = OwnBias(TensorSpec(DataType.INT32))
PAIRS = {
    "A16W16_A8W16": ((A16, W16), (A8, W16)),
    "A16W16_A16W8": ((A16, W16), (A16, W8)),
    "A16W16_A8W8": ((A16, W16), (A8, W8)),
    "A16W8_A8W8": ((A16, W8), (A8, W8)),
    "A8W16_A8W8": ((A8, W16), (A8, W8)),
}
STORE = MemoryStore()


def recipe(base: tuple[TensorSpec, TensorSpec], target: tuple[TensorSpec, TensorSpec], goal: Goal) -> Recipe:
    wide = base[0].dtype.bits + base[1].dtype.bits > 24
    plan = PlanOptions(base[0], base[1], **({"bias": WIDE_BIAS} if wide else {}))
    changed = LayerTarget(*(new if new != old else None for new, old in zip(target, base, strict=True)))
    return Recipe(plan=plan, mix=MixOptions(MixedPrecision((changed,), goal)))


def quantized(wanted: Recipe, **keywords: object) -> quantry.QuantizationResult:
    return quantry.quantize(network(), samples(), wanted, store=STORE, **keywords)


def bits(plan: QuantPlan) -> list[int]:
    """Return the bits of all weights and of what layers read."""
    reads = [plan.spec_of(name) for name in ("x", "b", "e", "g")]
    return [spec.dtype.bits for spec in (*reads, *(entry.spec for entry in plan.weights.values())) if spec is not None]


def changed(result: quantry.QuantizationResult) -> int:
    """Return how many layers the notes say have changed."""
    (found,) = [
        re.match(r"mixed precision: (\d+) of 4 layers", str(note))
        for note in result.notes
        if " of 4 layers" in str(note)
    ]
    assert found is not None
    return int(found[1])


def runs(result: quantry.QuantizationResult) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(result.to_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, samples()[0])


def error(result: quantry.QuantizationResult) -> float:
    exact = onnxruntime.InferenceSession(network().SerializeToString()).run(None, samples()[0])
    return float(np.mean([np.square(a - b).mean() for a, b in zip(runs(result), exact, strict=True)]))


@pytest.mark.parametrize("pair", PAIRS)
def test_layers_are_demoted_while_the_limit_holds(pair: str) -> None:
    high, low = PAIRS[pair]
    best, worst = (error(quantized(recipe(high, low, LayerCount(count)))) for count in (0, 9))
    result = quantized(recipe(high, low, WithinError((best + worst) / 2)))
    assert 0 < changed(result) < 4
    assert error(result) < worst


@pytest.mark.parametrize("pair", PAIRS)
def test_layers_are_promoted_until_the_limit_holds(pair: str) -> None:
    high, low = PAIRS[pair]
    worst, best = (error(quantized(recipe(low, high, LayerCount(count)))) for count in (0, 9))
    result = quantized(recipe(low, high, WithinError((best + worst) / 2)))
    assert 0 < changed(result) < 4
    assert error(result) < worst


def test_limit_that_the_whole_model_misses_demotes_nothing() -> None:
    result = quantized(recipe((A16, W16), (A8, W8), WithinError(1e-12)))
    assert set(bits(result.plan)) == {16}
    missed, counted = [str(note) for note in result.notes if "mixed precision" in str(note)][:2]
    assert "mixed precision misses its goal: l2 is" in missed
    assert counted.startswith("mixed precision: 0 of 4 layers")


def test_limit_that_all_layers_keep_demotes_all() -> None:
    assert set(bits(quantized(recipe((A16, W16), (A8, W8), WithinError(1.0))).plan)) == {8}


def test_fixed_number_of_layers_takes_those_that_gain_most() -> None:
    result = quantized(recipe((A8, W8), (A8, W16), LayerCount(1)))
    assert [name for name, entry in result.plan.weights.items() if entry.spec == W16] == ["fc_w"]
    assert any("1 of 4 layers that may change have int16 weights" in str(note) for note in result.notes)


def test_number_of_layers_beyond_the_model_is_noted() -> None:
    result = quantized(recipe((A8, W8), (A8, W16), LayerCount(500)))
    assert any("500 layers were requested, but only 4 can change; all of them do" in str(note) for note in result.notes)


def test_share_of_tensors_says_what_it_counts() -> None:
    result = quantized(recipe((A8, W8), (A16, W16), TensorShare(0.25)))
    (note,) = [note for note in result.notes if "quantized activations, weights and biases" in str(note)]
    found = re.search(r"(\d+) of (\d+) quantized .* share allows (\d+)", str(note))
    assert found is not None
    finer, everything, allowed = map(int, found.groups())
    assert 0 < finer <= allowed == int(0.25 * everything)


def test_error_in_the_users_score_is_reported_as_such() -> None:
    wanted = recipe((A8, W8), (A8, W16), WithinDrop(0.1))
    with pytest.raises(RecipeError, match=r"score must be a function of a list of arrays.*got TypeError"):
        quantized(wanted, score=lambda path: float(onnxruntime.InferenceSession(path).run(None, {})[0]))


def test_output_that_counts_decides_which_layer_matters() -> None:
    wanted = recipe((A8, W8), (A8, W16), LayerCount(1))
    mixed = replace(wanted.mix.mixed, output=1)
    result = quantized(replace(wanted, mix=MixOptions(mixed)))
    assert [name for name, entry in result.plan.weights.items() if entry.spec == W16] == ["wide_w"]


def test_score_of_the_user_decides() -> None:
    seen: list[tuple[int, ...]] = []

    def score(outputs: list[np.ndarray]) -> float:
        seen.append(outputs[0].shape)
        return float(-np.abs(outputs[0]).mean())

    result = quantized(recipe((A16, W16), (A8, W8), WithinDrop(10.0)), score=score)
    assert set(bits(result.plan)) == {8}
    assert set(seen) == {(12, 4)}
    assert any("drop of the score" in str(note) for note in result.notes)
    with pytest.raises(RecipeError, match="needs a function that scores outputs"):
        quantized(recipe((A16, W16), (A8, W8), WithinDrop(10.0)))


def test_share_of_tensors_is_respected_and_spent_where_it_helps_most() -> None:
    targets = (LayerTarget(A16, W16, OwnBias(W16)),)
    mixed = MixedPrecision(targets, TensorShare(0.25), operators=("^.*",), per_tensor=True)
    base = PlanOptions(A8, W8, OwnBias(W8))
    plain, result = quantized(Recipe(plan=base)), quantized(Recipe(plan=base, mix=MixOptions(mixed)))
    plan = result.plan
    names = [*(name for name in plan.activations if plan.root(name) == name), *plan.weights, *plan.biases]
    wide = [name for name in names if plan.spec_of(name) is not None and plan.spec_of(name).dtype.bits == 16]
    assert 0 < len(wide) <= 0.25 * len(names)
    assert error(result) < error(plain) / 2


@pytest.mark.parametrize("allocation", [Greedy(), None])
def test_size_budget_mixes_several_types(allocation: Greedy | None) -> None:
    targets = (LayerTarget(weight=TensorSpec(DataType.INT4)), LayerTarget(weight=W16))
    mixed = MixedPrecision(targets, SizeBudget(900))
    mixed = mixed if allocation is None else replace(mixed, allocation=allocation)
    plan = quantized(Recipe(plan=PlanOptions(A8, W8), mix=MixOptions(mixed))).plan
    elements = {"first_w": 162, "wide_w": 36, "last_w": 324, "fc_w": 24}
    used = sum(elements[name] * entry.spec.dtype.bits / 8 for name, entry in plan.weights.items()) + 22 * 4
    assert 600 < used <= 900
    assert len({entry.spec.dtype for entry in plan.weights.values()}) > 1


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_share_of_the_bytes_that_finer_types_add(share: float) -> None:
    four = PlanOptions(A8, TensorSpec(DataType.INT4))
    mixed = MixedPrecision((LayerTarget(weight=W8),), SizeShare(share))
    plan = quantized(Recipe(plan=four, mix=MixOptions(mixed))).plan
    elements = {"first_w": 162, "wide_w": 36, "last_w": 324, "fc_w": 24}
    wide = [name for name, entry in plan.weights.items() if entry.spec.dtype is DataType.INT8]
    assert sum(elements[name] for name in wide) <= share * sum(elements.values())
    assert bool(wide) == (share > 0)


def test_bit_operations_stay_within_their_budget() -> None:
    result = quantized(recipe((A8, W8), (A16, W16), BitOperationsBudget(0.6)))
    layers = ((162 * 100, "x", "first_w"), (36 * 100, "b", "wide_w"), (324 * 100, "e", "last_w"), (24, "g", "fc_w"))
    spent = sum(
        count * result.plan.spec_of(read).dtype.bits * result.plan.spec_of(weight).dtype.bits
        for count, read, weight in layers
    )
    whole = sum(count * 256 for count, _, _ in layers)
    assert whole / 4 < spent <= 0.6 * whole


def test_latency_is_measured_and_kept() -> None:
    everything = quantized(recipe((A8, W8), (A16, W16), LatencyBudget(1e6, runs=3)))
    assert set(bits(everything.plan)) == {16}
    with pytest.raises(RecipeError, match="budget of mixed precision must be at least"):
        quantized(recipe((A8, W8), (A16, W16), LatencyBudget(1e-6, runs=3)))


def test_sensitivity_serves_every_goal() -> None:
    store = MemoryStore()
    first = quantry.quantize(network(), samples(), recipe((A8, W8), (A8, W16), LayerCount(1)), store=store)
    second = quantry.quantize(network(), samples(), recipe((A8, W8), (A8, W16), LayerCount(2)), store=store)
    assert first.trace.computed("sensitivity") == 1
    assert second.trace.computed("sensitivity") == 0


def test_mixed_recipe_round_trips_and_gives_the_same_model() -> None:
    wanted = recipe((A8, W8), (A16, W16), LayerCount(2))
    assert from_yaml(to_yaml(wanted)) == wanted
    plain = quantry.quantize(network(), samples(), wanted, store=None)
    assert plain.to_bytes() == quantized(wanted).to_bytes()


@pytest.mark.parametrize(
    ("fields", "error_type", "message"),
    [
        ({"operators": ("LSTM",)}, SelectionError, "must have layers whose types the targets change"),
        ({"operators": ("Conv", "Sigmod")}, SelectionError, "MixedPrecision.operators .*'Sigmoid'"),
        ({"operators": ("^[",)}, SelectionError, "valid regular expressions"),
        ({"output": 9}, RecipeError, "MixedPrecision.output must be the index"),
        ({"include": ("frist",)}, SelectionError, "'first'"),
        ({"exclude": ("^.*",)}, SelectionError, "must have layers"),
    ],
)
def test_selection_without_layers_raises(fields: dict[str, object], error_type: type[Exception], message: str) -> None:
    wanted = recipe((A8, W8), (A16, W16), LayerCount(1))
    with pytest.raises(error_type, match=message):
        quantized(replace(wanted, mix=MixOptions(replace(wanted.mix.mixed, **fields))))


def test_layers_with_shared_inputs_can_be_excluded() -> None:
    wanted = recipe((A8, W8), (A16, W8), LayerCount(9))
    mixed = replace(wanted.mix.mixed, operators=("Conv", "Sigmoid"), unshared_inputs=True)
    plan = quantized(replace(wanted, mix=MixOptions(mixed))).plan
    assert plan.spec_of("c") == A8, "both Sigmoid and Mul read it"
    assert plan.spec_of("b") == A16


def test_goal_without_its_score_raises_before_any_work() -> None:
    misspelt = recipe((A8, W8), (A16, W16), WithinError(0.1, "cosin"))
    with pytest.raises(RecipeError, match=r"did you mean 'cosine'.* in WithinError\.metric"):
        quantry.quantize("no such file", recipe=misspelt)
    with pytest.raises(RecipeError, match="needs a function that scores outputs"):
        quantry.quantize("no such file", recipe=recipe((A8, W8), (A16, W16), WithinDrop(0.1)))


@pytest.mark.parametrize("goal", [None, LayerCount(1)])
def test_score_without_a_goal_that_needs_it_raises(goal: Goal | None) -> None:
    wanted = Recipe() if goal is None else recipe((A8, W8), (A16, W16), goal)
    with pytest.raises(RecipeError, match="score needs mixed precision with the goal WithinDrop"):
        quantry.quantize("no such file", recipe=wanted, score=lambda _: 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (LayerTarget, "must set activation or weight"),
        (lambda: MixedPrecision((), LayerCount(1)), "at least one LayerTarget"),
        (lambda: MixedPrecision((LayerTarget(A16),) * 2, WithinError(1.0)), "must be one LayerTarget"),
        (
            lambda: MixedPrecision((LayerTarget(A16),), BitOperationsBudget(0.5), per_tensor=True),
            "per_tensor must be False",
        ),
        (lambda: TensorShare(1.5), "between 0 and 1"),
        (lambda: replace(recipe((A8, W8), (A16, W8), LayerCount(1)), emit=EmitOptions(QOperator())), "targets\\[0\\]"),
    ],
)
def test_invalid_options_raise(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
