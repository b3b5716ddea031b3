"""Rounding with error feedback: compiled, in numpy, and as the paper writes it."""

import numpy as np
import pytest

from quantry.numerics import kernels
from quantry.tune.gptq import descend, round_with_feedback
from quantry.tune.layer_problem import WeightGrid
from quantry.tune.quadratic_form import damped

SHAPES = [(1, 16, 70), (1, 5, 3), (24, 1, 9), (3, 4, 20)]


def problem(shape: tuple[int, int, int], *, per_channel: bool):
    generator = np.random.default_rng(sum(shape))
    groups, _, width = shape
    mixing = np.eye(width) + generator.normal(size=(width, width)) / width
    inputs = generator.normal(size=(groups, 3 * width, width)) @ mixing
    gram = damped(inputs.transpose(0, 2, 1) @ inputs, 0.01)
    weight = generator.normal(size=shape).astype(np.float32)
    largest = np.abs(weight).max(axis=2, keepdims=True) if per_channel else np.abs(weight).max(keepdims=True)
    limits = np.full((1, 1, 1), -8, np.float32), np.full((1, 1, 1), 7, np.float32)
    return weight, gram, WeightGrid((largest / 7).astype(np.float32), *limits)


def textbook(weight, gram, grid):
    """GPTQ with the Cholesky factor of the inverse, one row and one column at a time."""
    result = np.empty_like(weight)
    for group, matrix in enumerate(gram):
        factor = np.linalg.cholesky(np.linalg.inv(matrix)).T
        rest = weight[group].astype(np.float64)
        for column in range(rest.shape[1]):
            padded = np.zeros_like(weight)
            padded[group, :, column] = rest[:, column]
            result[group, :, column] = grid.round(padded)[group, :, column]
            lost = (rest[:, column] - result[group, :, column]) / factor[column, column]
            rest[:, column:] -= lost[:, None] * factor[None, column, column:]
    return result


def error(weight, rounded, gram):
    lost = (weight - rounded).astype(np.float64)
    return np.einsum("grk,gkl,grl->", lost, gram, lost)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_rounding_is_that_of_the_paper(monkeypatch, shape, per_channel, native):
    if not native:
        monkeypatch.setattr(kernels, "loaded", lambda: None)
    weight, gram, grid = problem(shape, per_channel=per_channel)
    rounded = round_with_feedback(weight, gram, grid, 16, ordered=False)
    # A tie that float32 breaks otherwise moves a weight by one step; the error hardly notices.
    assert np.mean(rounded == textbook(weight, gram, grid)) > 0.99
    assert error(weight, rounded, gram) < 1.001 * error(weight, textbook(weight, gram, grid), gram)
    if shape[2] > 10:
        assert error(weight, rounded, gram) < error(weight, grid.round(weight), gram)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("native", [False, True])
def test_descent_lowers_the_error_and_stays_on_the_grid(monkeypatch, shape, native):
    if not native:
        monkeypatch.setattr(kernels, "loaded", lambda: None)
    weight, gram, grid = problem(shape, per_channel=True)
    start = grid.round(weight)
    found = descend(start, gram, gram @ weight.transpose(0, 2, 1), grid, 5)
    np.testing.assert_array_equal(found, grid.round(found))
    assert error(weight, found, gram) <= error(weight, start, gram)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_every_level_has_the_bytes_of_numpy(monkeypatch, shape, per_channel, ordered):
    weight, gram, grid = problem(shape, per_channel=per_channel)

    def found(compiled):
        monkeypatch.setattr(kernels, "loaded", lambda: compiled)
        rounded = round_with_feedback(weight, gram, grid, 16, ordered=ordered)
        return rounded, descend(rounded, gram, gram @ weight.transpose(0, 2, 1), grid, 3)

    levels = [kernels.loaded(level) for level in kernels.supported_levels()]
    expected = found(None)
    for level in levels:
        for left, right in zip(found(level), expected, strict=True):
            np.testing.assert_array_equal(left, right)
