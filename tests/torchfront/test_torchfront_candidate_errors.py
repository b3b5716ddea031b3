"""Compiled and plain computation of candidate errors agree with each other and with NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quantry.numerics import kernels
from quantry.torchfront.error_costs import Candidates, candidate_errors

SHAPES = [((), None), ((7,), None), ((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 6, 9, 11), 1), ((2, 6, 9, 11), None)]
SHAPES += [((1, 3, 100, 100), 1), ((1, 3, 100, 100), None), ((0, 4), 1), ((6, 2, 1, 1), 3)]


@pytest.fixture(params=["compiled", "operations"])
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "operations":
        monkeypatch.setattr(kernels, "loaded", lambda: None)


def drawn(shape: tuple[int, ...], axis: int | None) -> tuple[Tensor, Tensor, Candidates]:
    generator = torch.Generator().manual_seed(5)
    values, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    channels = 1 if axis is None else shape[axis]
    scales = torch.tensor([2.0**-6, 2.0**-3, 0.0311])[:, None] * (1 + torch.arange(channels) % 3)
    low = torch.full((channels,), -128.0) + torch.arange(channels)
    return values * 2, gradient, Candidates(scales, low, low + 255)


def expected(values: Tensor, gradient: Tensor, candidates: Candidates, axis: int | None) -> np.ndarray:
    x, g = (np.asarray(part, np.float64) for part in (values, gradient))
    if axis is None:
        x, g = x.reshape(1, -1), g.reshape(1, -1)
    else:
        x, g = (np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1) for part in (x, g))
    low, high = candidates.low.numpy()[:, None], candidates.high.numpy()[:, None]
    rows = []
    for scales in candidates.scales.numpy():
        steps = (x.astype(np.float32) / scales[:, None]).astype(np.float64)
        error = (np.clip(np.rint(steps), low, high) * scales[:, None].astype(np.float64) - x) * g
        rows.append((error**2).sum(1))
    return np.array(rows)


@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_costs_are_those_of_numpy(shape: tuple[int, ...], axis: int | None) -> None:
    values, gradient, candidates = drawn(shape, axis)
    found = candidate_errors(values, gradient, candidates, axis)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected(values, gradient, candidates, axis), rtol=1e-4, atol=1e-9)


@pytest.mark.usefixtures("_implementation")
def test_one_scale_may_serve_all_channels() -> None:
    values, gradient, _ = drawn((2, 6, 9, 11), 1)
    one = Candidates(torch.tensor([[0.25], [0.0625]]), torch.tensor([-8.0]), torch.tensor([7.0]))
    each = Candidates(one.scales.expand(2, 6), one.low.expand(6), one.high.expand(6))
    found = candidate_errors(values, gradient, one, 1)
    assert found.shape == (2, 6)
    np.testing.assert_allclose(found, candidate_errors(values, gradient, each, 1), rtol=1e-12)


@pytest.mark.usefixtures("_implementation")
def test_orders_in_memory_do_not_matter() -> None:
    values, gradient, candidates = drawn((2, 6, 9, 11), 1)
    wanted = candidate_errors(values, gradient, candidates, 1)
    last = torch.channels_last
    found = candidate_errors(
        values.to(memory_format=last), gradient.permute(1, 0, 3, 2).permute(1, 0, 3, 2), candidates, 1
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.integers(-20, 20))
def test_any_values(numbers: list[float], exponent: int) -> None:
    values = torch.tensor(numbers)
    candidates = Candidates(torch.tensor([[2.0**exponent]]), torch.tensor([-128.0]), torch.tensor([127.0]))
    found = candidate_errors(values, torch.ones_like(values), candidates, None)
    wanted = expected(values, torch.ones_like(values), candidates, None)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-30)
