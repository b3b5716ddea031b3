"""Training of rows: compiled, in NumPy, against autograd, and against errors measured without a Gram matrix."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_rows import OrderedRows
from tune_models import chain, inputs, network, task_of

from quantry.numerics import kernels
from quantry.recipe import AdaQuant, AdaRound
from quantry.tune import row_backends
from quantry.tune.adaround_and_adaquant import corrected, regularization, train_layer
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import find_layers
from quantry.tune.layerwise import LayerVisit, LayerWalker
from quantry.tune.row_backends import CompiledRows, NumpyRows
from quantry.tune.row_problem import HIGH, LOW, BiasGrid, RowProblem, low_rank

needs_kernels = pytest.mark.skipif(kernels.loaded() is None, reason="no compiled kernels")


def compiled_rows(problem: RowProblem, level: str | None = None) -> CompiledRows:
    compiled = kernels.loaded(level)
    assert compiled is not None
    return CompiledRows(problem, compiled)


def problem_of(shape: tuple[int, int, int], *, rounds: bool, seed: int = 0) -> RowProblem:
    """Return rows with correlated columns, coarse grids and, to be trained, weights or their rounding."""
    groups, rows, width = shape
    random = np.random.default_rng(seed)
    weight = random.standard_normal(shape).astype(np.float32)
    seen = random.standard_normal((groups, 200, width)) + random.standard_normal((groups, 200, 1))
    noisy = seen + 0.1 * random.standard_normal(seen.shape)
    targets = seen @ weight.transpose(0, 2, 1)
    scale = random.uniform(0.2, 0.4, (groups, rows, 1)).astype(np.float32)
    bounds = np.full((groups, rows, 1), 4, np.float32)
    floor = np.floor(weight / scale)
    part = (weight / scale - floor - LOW) / (HIGH - LOW)
    bias_scale = np.where(random.random((groups, rows)) < 0.5, 0.0, 0.05)
    return RowProblem(
        gram=(noisy.transpose(0, 2, 1) @ noisy / 200).astype(np.float32),
        cross=np.ascontiguousarray((targets.transpose(0, 2, 1) @ noisy / 200).astype(np.float32)),
        mean=np.zeros((groups, width), np.float32) if rounds else random.standard_normal((groups, width), np.float32),
        target=random.standard_normal((groups, rows), np.float32),
        scale=scale,
        lowest=-bounds,
        highest=bounds - 1,
        value=np.log(part / (1 - part)).astype(np.float32) if rounds else weight,
        floor=floor if rounds else None,
        bias=random.standard_normal((groups, rows), np.float32),
        bias_grid=BiasGrid(bias_scale, np.full_like(bias_scale, -128), np.full_like(bias_scale, 127)),
        bias_moves=not rounds,
    )


def schedule(first: int, count: int, rate: float, step: AdaRound | None) -> np.ndarray:
    terms = [regularization(step, number) if step else (0.0, 0.0) for number in range(first, first + count)]
    return np.array([(*corrected(first + i + 1, rate), *term) for i, term in enumerate(terms)], np.float32)


SHAPES = [(1, 10, 70), (5, 1, 9), (2, 19, 33), (1, 3, 1), (1, 34, 530)]


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_every_level_has_the_bytes_of_numpy(shape: tuple[int, int, int], rounds: bool) -> None:
    count = 70 if shape[2] < 100 else 2
    step = AdaRound(iterations=2 * count, regularization=3.0, beta_range=(4.0, 2.0)) if rounds else None
    rate = 0.1 if rounds else 1e-3
    assert_same_bytes(problem_of(shape, rounds=rounds), [schedule(first, count, rate, step) for first in (0, count)])


@needs_kernels
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_every_level_has_the_bytes_of_numpy_with_a_factor(rounds: bool) -> None:
    factor = np.random.default_rng(3).standard_normal((1, 90, 9)).astype(np.float32)
    gram = factor @ factor.transpose(0, 2, 1)
    problem = replace(problem_of((1, 12, 90), rounds=rounds), gram=gram, factor=factor)
    step = AdaRound(iterations=70) if rounds else None
    assert_same_bytes(problem, [schedule(0, 70, 0.1 if rounds else 1e-3, step)])


def assert_same_bytes(problem: RowProblem, schedules: list[np.ndarray]) -> None:
    """Compare losses, values and biases of every level with those of the reference."""
    plain = OrderedRows(problem)
    expected = [plain.advance(entries) for entries in schedules]
    for level in kernels.supported_levels():
        compiled = compiled_rows(problem, level)
        for entries, losses in zip(schedules, expected, strict=True):
            np.testing.assert_array_equal(compiled.advance(entries), losses)
        for left, right in zip(compiled.trained(), plain.trained(), strict=True):
            np.testing.assert_array_equal(left, right)


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_blas_changes_only_the_rounding(shape: tuple[int, int, int], rounds: bool) -> None:
    problem = problem_of(shape, rounds=rounds)
    count = 30 if shape[2] < 100 else 6
    step = AdaRound(iterations=3 * count) if rounds else None
    compiled, plain = compiled_rows(problem), NumpyRows(problem)
    rate = 0.1 if rounds else 1e-3
    for first in (0, count, 2 * count):
        entries = schedule(first, count, rate, step)
        ours, theirs = compiled.advance(entries), plain.advance(entries)
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())
    for left, right in zip(compiled.trained(), plain.trained(), strict=True):
        assert np.mean(np.abs(left - right) < 1e-2) > 0.97


@needs_kernels
@pytest.mark.parametrize("rounds", [True, False], ids=["adaround", "adaquant"])
def test_gram_matrix_of_low_rank_is_used_by_its_factor(rounds: bool) -> None:
    full = problem_of((1, 12, 90), rounds=rounds)
    seen = np.random.default_rng(3).standard_normal((1, 9, 90))
    gram = seen.transpose(0, 2, 1) @ seen
    factor = low_rank(gram, 10)
    assert factor is not None
    assert low_rank(gram, 31) is None
    np.testing.assert_allclose(factor @ factor.transpose(0, 2, 1), gram, atol=1e-4)
    plain = replace(full, gram=gram.astype(np.float32))
    short = replace(plain, factor=factor)
    entries = schedule(0, 40, 0.1 if rounds else 1e-3, AdaRound(iterations=40) if rounds else None)
    expected = NumpyRows(plain).advance(entries)
    for rows in (NumpyRows(short), compiled_rows(short)):
        np.testing.assert_allclose(rows.advance(entries), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@needs_kernels
def test_fully_rounded_rows_no_longer_change() -> None:
    problem = problem_of((1, 9, 40), rounds=True)
    step = AdaRound(iterations=300, regularization=10.0, beta_range=(4.0, 2.0))
    compiled, plain = compiled_rows(problem), NumpyRows(problem)
    for first in range(0, 300, 100):
        ours, theirs = (rows.advance(schedule(first, 100, 0.1, step)) for rows in (compiled, plain))
    assert ours[-1] == ours[-50]
    assert ours[-1] == pytest.approx(theirs[-1], rel=1e-3)
    assert np.mean((compiled.trained()[0] >= 0) == (plain.trained()[0] >= 0)) > 0.99


@needs_kernels
def test_result_does_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of((1, 37, 50), rounds=True)
    results = []
    for count in (1, 2, 5):
        monkeypatch.setattr("quantry.runtime.threads.thread_count", lambda count=count: count)
        rows = compiled_rows(problem)
        losses = rows.advance(schedule(0, 40, 0.1, AdaRound(iterations=40)))
        results.append(np.concatenate([rows.trained()[0].ravel(), losses]))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("number", [0, 70], ids=["warm", "pushed"])
def test_first_step_goes_against_the_derivative_that_autograd_finds(compiled: bool, number: int) -> None:
    if compiled and kernels.loaded() is None:
        pytest.skip("no compiled kernels")
    problem = problem_of((1, 6, 12), rounds=True)
    step = AdaRound(iterations=100, regularization=0.5)
    value = torch.tensor(problem.value, dtype=torch.float64, requires_grad=True)
    up = torch.clamp(torch.sigmoid(value) * (HIGH - LOW) + LOW, 0.0, 1.0)
    scale, low, high, floor, cross, gram = (
        torch.tensor(part, dtype=torch.float64)
        for part in (problem.scale, problem.lowest, problem.highest, problem.floor, problem.cross, problem.gram)
    )
    weight = torch.clamp(floor + up, low, high) * scale
    beta, strength = regularization(step, number)
    loss = (weight @ gram * weight).sum() - 2 * (weight * cross).sum()
    (loss + strength * (1.0 - (2 * up - 1).abs().pow(beta)).sum()).backward()
    rows = compiled_rows(problem) if compiled else NumpyRows(problem)
    before = problem.value.copy()
    losses = rows.advance(schedule(number, 1, 1e-3, step))
    assert losses[0] == pytest.approx(loss.item(), rel=1e-4)
    moved = rows.trained()[0] - before
    # The first step of Adam is as long as the learning rate says, whatever the derivative.
    clear = value.grad.abs().numpy() > 1e-3
    assert clear.mean() > 0.5
    assert np.array_equal(np.sign(moved[clear]), -np.sign(value.grad.numpy()[clear]))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate=st.sampled_from([1e-3, 0.1, 3.0]),
    rounds=st.booleans(),
    early=st.booleans(),
    kind=st.sampled_from(["chain", "network"]),
)
def test_row_never_ends_worse_than_plain_rounding(seed: int, rate: float, rounds: bool, early: bool, kind: str) -> None:
    shape, model = ((3, 8, 8), chain()) if kind == "chain" else ((4, 9, 8), network())
    task = task_of(model, inputs(shape, 3, seed=seed))
    layers, _ = find_layers(task.model.model, task.plan, ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    step = (AdaRound if rounds else AdaQuant)(iterations=20, learning_rate=rate, early_stop=early)
    for visit in LayerWalker(task, layers, step).visits("test"):
        problem = LayerProblem(visit, trains_bias=not rounds, trained=True)
        result = train_layer(visit, step)
        weight = np.asarray(problem.matrix.to_matrix(result.values[visit.layer.weight]), np.float32)
        bias = result.values.get(visit.layer.bias or "", problem.bias).reshape(problem.bias.shape)
        before = measured(visit, problem, problem.plain(), problem.rounded_bias(problem.bias))
        after = measured(visit, problem, weight, problem.rounded_bias(bias))
        assert (after <= before * (1 + 1e-3) + 1e-6).all()
        visit.finish(result.values)


def measured(visit: LayerVisit, problem: LayerProblem, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the mean squared error of each row over all positions of all samples, from outputs alone.

    Targets are those of the training: outputs of the float model as far as errors of the inputs can be made up for.
    """
    errors, part = [], problem.quadratic.compensated
    for sample in range(visit.samples):
        columns, targets = problem.matrix.columns(*visit.pair(sample), 10**9, np.random.default_rng(0))
        seen = columns.astype(np.float64)
        targets = part * targets + (1 - part) * (seen @ problem.weight.transpose(0, 2, 1) + problem.bias[:, None, :])
        outputs = seen @ weight.transpose(0, 2, 1) + bias[:, None, :]
        errors.append(((outputs - targets) ** 2).mean(1))
    return np.mean(errors, 0)


def test_numpy_is_used_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    assert isinstance(row_backends.row_steps(problem_of((1, 2, 3), rounds=True)), NumpyRows)
