"""Rounding with error feedback: the maths against brute force, the step against plain rounding."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_models import chain, inputs, network, task_of

from quantry.emit import emit
from quantry.memo import Memo, MemoryStore
from quantry.recipe import EmitOptions, Gptq
from quantry.runtime.sessions import simulation_session
from quantry.tune import TuneTask, tune, tuned_model
from quantry.tune.gptq import descend, round_with_feedback
from quantry.tune.layer_problem import WeightGrid
from quantry.tune.quadratic_form import damped, least_squares
from quantry.tune.task import Tuned


def step_of(task: TuneTask, step: Gptq) -> Tuned:
    return tune(task.reference, task.model, task.plan, task.params, task.data, step)


def output_error(task: TuneTask, tuned: Tuned | None, samples: list[dict[str, np.ndarray]]) -> float:
    """Return the mean squared distance of the emitted model's output from the float one's."""
    model = task.model if tuned is None else tuned_model(task.model, tuned)
    params = task.params if tuned is None else tuned.params
    quantized = simulation_session(emit(model, task.plan, params, EmitOptions(), {}).to_bytes())
    reference = simulation_session(task.reference.model)
    errors = [quantized.run(None, sample)[0] - reference.run(None, sample)[0] for sample in samples]
    return float(np.mean(np.square(errors)))


def problem(seed: int, width: int) -> tuple[np.ndarray, np.ndarray, WeightGrid]:
    random = np.random.default_rng(seed)
    columns = random.standard_normal((64, width)) @ random.standard_normal((width, width))
    weight = random.standard_normal((1, 3, width)).astype(np.float32)
    grid = WeightGrid(*(np.full((1, 3, 1), value, np.float32) for value in (0.5, -4.0, 3.0)))
    return weight, (columns.T @ columns / 64)[None], grid


def form(error: np.ndarray, gram: np.ndarray) -> float:
    return float(np.einsum("grk,gkl,grl->", error.astype(np.float64), gram, error))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_rounding_is_no_worse_than_nearest_after_descent_and_stays_on_the_grid(seed: int) -> None:
    weight, gram, grid = problem(seed, 6)
    full = damped(gram, 0.01)
    rounded = round_with_feedback(weight, full, grid, 4, ordered=True)
    better = descend(rounded, full, full @ weight.transpose(0, 2, 1), grid, 3)
    levels = better / 0.5
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-5)
    assert levels.min() >= -4
    assert levels.max() <= 3
    assert form(better - weight, full) <= form(rounded - weight, full) * (1 + 1e-5) + 1e-9


def test_descent_from_feedback_is_near_the_best_of_all_roundings() -> None:
    weight, gram, grid = problem(7, 4)
    full = damped(gram, 0.01)
    found = descend(
        round_with_feedback(weight, full, grid, 4, ordered=True), full, full @ weight.transpose(0, 2, 1), grid, 5
    )
    choices = np.array(list(product(np.arange(-4, 4) * 0.5, repeat=4)), np.float32)
    for row in range(3):
        errors = choices - weight[0, row]
        best = np.einsum("nk,kl,nl->n", errors, full[0], errors).min()
        mine = found[0, row] - weight[0, row]
        assert mine @ full[0] @ mine <= 3.0 * best + 1e-9


@pytest.mark.parametrize("block", [1, 3, 128])
def test_block_size_does_not_change_the_result(block: int) -> None:
    weight, gram, grid = problem(3, 7)
    full = damped(gram, 0.01)
    ours = round_with_feedback(weight, full, grid, block, ordered=False)
    np.testing.assert_array_equal(ours, round_with_feedback(weight, full, grid, 7, ordered=False))


def test_least_squares_finds_the_weights_that_made_the_targets() -> None:
    random = np.random.default_rng(0)
    columns, truth = random.standard_normal((200, 5)), random.standard_normal((3, 5))
    gram, cross = columns.T @ columns / 200, columns.T @ (columns @ truth.T) / 200
    found = least_squares(np.zeros((1, 3, 5), np.float32), gram[None], cross[None], 1e-9)
    np.testing.assert_allclose(found[0], truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [chain, network])
def test_outputs_are_closer_to_the_float_model_on_new_samples(model) -> None:  # type: ignore[no-untyped-def]
    shape = (3, 8, 8) if model is chain else (4, 9, 8)
    task = task_of(model(), inputs(shape, 16))
    tuned = step_of(task, Gptq())
    fresh = inputs(shape, 8, seed=9)
    assert output_error(task, tuned, fresh) < 0.8 * output_error(task, None, fresh)
    assert "layers tuned" in str(tuned.notes[0])


def test_tuned_weights_are_on_the_grid_of_their_parameters() -> None:
    task = task_of(chain(), inputs((3, 8, 8)))
    tuned = step_of(task, Gptq())
    for name in ("wa", "wb", "wc"):
        levels = tuned.weights[name] / task.params.tensors[name].scale.reshape(-1, 1, 1, 1)
        np.testing.assert_allclose(levels, np.rint(levels), atol=1e-4)


def test_bias_stays_if_it_may_not_change() -> None:
    tuned = step_of(task_of(chain(), inputs((3, 8, 8))), Gptq(update_bias=False))
    assert set(tuned.weights) == {"wa", "wb", "wc"}


def test_selective_update_never_makes_outputs_worse() -> None:
    samples = inputs((3, 8, 8), 6)
    task = task_of(chain(), samples)
    tuned = step_of(task, Gptq(selective=True))
    assert output_error(task, tuned, samples) <= output_error(task, None, samples)


def test_result_reads_back_from_its_blob_and_is_the_same_every_time() -> None:
    task = task_of(chain(), inputs((3, 8, 8), 4))
    first, second = step_of(task, Gptq()), step_of(task, Gptq())
    again = Tuned.from_blob(first.to_blob())
    assert first.to_blob() == second.to_blob() == again.to_blob()


def test_interrupted_run_resumes_after_the_last_finished_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantry.tune import gptq

    task = task_of(chain(), inputs((3, 8, 8), 4))
    arguments = (task.reference, task.model, task.plan, task.params, task.data, Gptq())
    memo = Memo(MemoryStore())
    visited: list[str] = []
    original = gptq.round_layer

    def failing(visit, step):  # type: ignore[no-untyped-def]
        visited.append(visit.layer.weight)
        if visit.layer.weight == "wc" and len(visited) == 3:
            raise KeyboardInterrupt
        return original(visit, step)

    monkeypatch.setattr(gptq, "round_layer", failing)
    with pytest.raises(KeyboardInterrupt):
        memo.run(tune, *arguments)
    resumed = memo.run(tune, *arguments).value
    assert visited == ["wa", "wb", "wc", "wc"]
    monkeypatch.undo()
    assert resumed.to_blob() == tune(*arguments).to_blob()


def test_layer_that_cannot_be_tuned_is_reported_with_its_reason() -> None:
    task = task_of(chain(), inputs((3, 8, 8), 2))
    plan = replace(task.plan, quantized_nodes=tuple(name for name in task.plan.quantized_nodes[:1]))
    tuned = step_of(replace(task, plan=plan), Gptq())
    assert any("it is not quantized" in str(note) for note in tuned.notes)
