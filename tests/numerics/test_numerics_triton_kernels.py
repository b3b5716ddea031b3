"""The Triton kernels give the results and gradients of the reference."""

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch_implementations import both, drawn, reference

from quantry.numerics import torch_quantizer
from quantry.numerics.torch_quantizer import Gradient, fake_quantize

GRIDS = [(0, (-128, 127), -5.3), (128, (0, 255), -5.3), (0, (-32768, 32767), -13.2)]
SHAPES = [(3, 5, 7, 11), (2, 64, 8, 12), (10,)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def zero(value: int = 0) -> Tensor:
    return torch.tensor(value, dtype=torch.int32, device=DEVICE)


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select the Triton kernels, in Triton's interpreter where there is no GPU."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    module: ModuleType = importlib.import_module("quantry.numerics.triton_kernels")
    monkeypatch.setattr(torch_quantizer, "_kernels", lambda _: module)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("zero_point", "limits", "exponent"), GRIDS, ids=str)
def test_learned_power_of_two_equals_the_reference(
    shape: tuple[int, ...], zero_point: int, limits: tuple[int, int], exponent: float
) -> None:
    values, gradient = drawn(shape, device=DEVICE)
    if len(shape) == 4:
        values = values.to(memory_format=torch.channels_last)
    parts = zero(zero_point), limits, None, Gradient.TQT
    expected = both(lambda x, t: reference(x, t, *parts), values, gradient, exponent)
    found = both(lambda x, t: fake_quantize(x, t, *parts), values, gradient, exponent)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_learned_float_scale_equals_the_reference(shape: tuple[int, ...]) -> None:
    values, gradient = drawn(shape, device=DEVICE)
    parts = zero(), (-128, 127), None, Gradient.LSQ
    expected = both(lambda x, s: reference(x, s, *parts), values, gradient, 0.0237)
    found = both(lambda x, s: fake_quantize(x, s, *parts), values, gradient, 0.0237)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("scale", [2.0**-5, 0.0237])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fixed_scale_equals_the_reference(scale: float, dtype: torch.dtype) -> None:
    values, gradient = drawn((2, 64, 8, 12), dtype, DEVICE)
    expected = both(lambda x, s: reference(x, s.detach(), zero(3), (-128, 127)), values, gradient, scale)
    found = both(lambda x, s: fake_quantize(x, s.detach(), zero(3), (-128, 127)), values, gradient, scale)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[2] is None


def test_narrow_floats_stay_in_their_type_and_on_the_grid() -> None:
    values, gradient = drawn((2, 3, 5, 7), torch.bfloat16, DEVICE)
    parts = zero(), (-128, 127), None, Gradient.TQT
    expected = both(lambda x, t: reference(x, t, *parts), values, gradient, -4.0)
    found = both(lambda x, t: fake_quantize(x, t, *parts), values, gradient, -4.0)
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_gradients_may_have_any_memory_layout() -> None:
    values, _ = drawn((2, 8, 3, 3), device=DEVICE)
    parts = zero(), (-128, 127), None, Gradient.TQT
    broadcast = torch.ones(2, 1, 1, 1, device=DEVICE).expand(2, 8, 3, 3)[..., :2]
    sliced = torch.cat([values, values], 3)[..., ::2]
    expected = both(lambda x, t: reference(x[..., ::2], t, *parts), sliced, broadcast, -5.0)
    found = both(lambda x, t: fake_quantize(x[..., ::2], t, *parts), sliced, broadcast, -5.0)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
