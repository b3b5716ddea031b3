"""How far layers compensate errors of their inputs, against moments, errors and gradients computed directly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_models import chain, inputs, task_of

from quantry.recipe import AdaQuant, AdaRound, LayerTraining
from quantry.tune.adaround_and_adaquant import train_layer
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import find_layers
from quantry.tune.layerwise import LayerWalker
from quantry.tune.quadratic_form import QuadraticForm, compensation_share, joined, with_compensation


def form_of(columns: np.ndarray, targets: np.ndarray) -> QuadraticForm:
    """Return the moments of columns ``[groups, positions, width]`` and targets ``[groups, positions, rows]``."""
    turned = columns.transpose(0, 2, 1)
    count = columns.shape[1]
    sums = [turned @ columns, turned @ targets, (targets**2).sum(1), columns.sum(1), targets.sum(1)]
    return QuadraticForm.of_sums(sums, count)


def drawn(seed: int, positions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return columns that go together, float weights, biases, and a change of the weights."""
    random = np.random.default_rng(seed)
    columns = random.standard_normal((2, positions, 6)) + random.standard_normal((2, positions, 1)) + 0.5
    weight, change = random.standard_normal((2, 3, 6)), random.standard_normal((2, 3, 6))
    return columns, weight, random.standard_normal((2, 3)), change


def outputs(columns: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return np.asarray(columns @ weight.transpose(0, 2, 1) + bias[:, None, :])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), cut=st.integers(1, 39))
def test_halves_join_to_the_moments_of_all(seed: int, cut: int) -> None:
    columns, weight, bias, _ = drawn(seed, 40)
    targets = outputs(columns, weight, bias) ** 2
    whole = form_of(columns, targets)
    both = joined((form_of(columns[:, :cut], targets[:, :cut]), form_of(columns[:, cut:], targets[:, cut:])))
    for name in ("gram", "cross", "power", "column_mean", "target_mean", "count"):
        np.testing.assert_allclose(getattr(both, name), getattr(whole, name), rtol=1e-9, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), part=st.floats(0, 1))
def test_aim_between_is_the_error_and_slope_that_autograd_finds_there(seed: int, part: float) -> None:
    columns, weight, bias, change = drawn(seed, 50)
    targets = outputs(columns, weight, bias) + np.random.default_rng(seed).standard_normal((2, 50, 3))
    form = with_compensation(form_of(columns, targets), weight, bias, part)
    assert form.compensated == part
    between = torch.from_numpy(part * targets + (1 - part) * outputs(columns, weight, bias))
    tried = torch.tensor(weight + change, requires_grad=True)
    found = torch.from_numpy(columns) @ tried.transpose(1, 2) + torch.from_numpy(bias)[:, None, :]
    loss = (found - between).square().mean(1)
    np.testing.assert_allclose(form.error(weight + change, bias), loss.detach(), rtol=1e-7, atol=1e-7)
    loss.sum().backward()
    fixed = form.without_bias(bias)
    slope = 2.0 * ((weight + change) @ fixed.gram - fixed.cross.transpose(0, 2, 1))
    np.testing.assert_allclose(slope, tried.grad, rtol=1e-6, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999))
def test_compensation_is_distinguished_from_overfitting(seed: int) -> None:
    columns, weight, bias, change = drawn(seed, 400)
    noise = np.random.default_rng(seed).standard_normal((2, 400, 3))
    parts = []
    for error in (outputs(columns, change, 0 * bias), noise):
        targets = outputs(columns, weight, bias) + error
        halves = [form_of(columns[:, half::2], targets[:, half::2]) for half in (0, 1)]
        parts.append(compensation_share(halves, weight))
        tensors = [half.converted(torch.from_numpy) for half in halves]
        in_torch = compensation_share(tensors, torch.from_numpy(weight), torch.linalg.solve)
        assert in_torch == pytest.approx(parts[-1], abs=1e-9)
    assert parts[0] > 0.85
    assert parts[1] < 0.75 * parts[0]  # at most 0.62 for any of these seeds


def test_one_half_alone_gives_no_compensation() -> None:
    columns, weight, bias, change = drawn(0, 40)
    assert compensation_share([form_of(columns, outputs(columns, weight + change, bias))], weight) == 0.0


def test_one_sample_is_split_between_its_images() -> None:
    images = inputs((3, 8, 8), 6)
    joint = [{"x": np.concatenate([sample["x"] for sample in images])}]
    parts = [_parts(samples) for samples in (joint, images, images[:1])]
    assert parts[0] == pytest.approx(parts[1], abs=0.05)
    assert parts[2] == [0.0, 0.0, 0.0]


def _parts(samples: list[dict[str, np.ndarray]]) -> list[float]:
    task = task_of(chain(), samples)
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    visits = LayerWalker(task, layers, AdaQuant()).visits("test")
    return [LayerProblem(visit, trains_bias=True, trained=True).quadratic.compensated for visit in visits]


@pytest.mark.parametrize("step", [AdaRound(iterations=300, regularization=1.0)], ids=["adaround"])
def test_early_stop_of_rounding_loses_nothing(step: LayerTraining) -> None:
    task = task_of(chain(), inputs((3, 8, 8), 6))
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    found = []
    for early in (True, False):
        chosen = replace(step, early_stop=early)
        for visit in LayerWalker(task, layers, chosen).visits("test"):
            result = train_layer(visit, chosen)  # type: ignore[arg-type]
            found.append(result.after)
            visit.finish(result.values)
    assert found[:3] == pytest.approx(found[3:], rel=1e-6)
