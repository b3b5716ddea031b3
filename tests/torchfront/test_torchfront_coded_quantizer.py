"""Learned scales that keep a byte of each element have the gradients of those that keep all."""

import pytest
import torch
from torch import Tensor

from quantry.numerics.torch_quantizer import Gradient, fake_quantize
from quantry.torchfront import coded_quantizer
from quantry.torchfront.coded_quantizer import coded_fake_quantize, is_coded
from quantry.torchfront.learned_scale import fake_quantize_power_of_two

GRIDS = [(0, (-128, 127), -5.3), (128, (0, 255), -5.3), (0, (-32768, 32767), -13.2)]
SHAPES = [(3, 5, 7, 11), (2, 64, 8, 12), (10,)]


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    values, gradient = (torch.randn(shape, generator=generator).to(device(), dtype) for _ in range(2))
    return values * 3, gradient


def both(function: object, values: Tensor, gradient: Tensor, parameter: float) -> tuple[Tensor, Tensor, Tensor]:
    x, learned = values.clone().requires_grad_(), torch.tensor(parameter, device=device(), requires_grad=True)
    result = function(x, learned)  # type: ignore[operator]
    result.backward(gradient)
    assert x.grad is not None
    assert learned.grad is not None
    return result.detach(), x.grad, learned.grad


@pytest.fixture(params=["operations", "kernels"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernels":
        if not torch.cuda.is_available():
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton")
    monkeypatch.setattr(coded_quantizer, "_has_kernels", lambda _: request.param == "kernels")


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("zero_point", "limits", "exponent"), GRIDS, ids=str)
def test_power_of_two_scale_has_the_results_and_gradients_of_the_plain_way(
    shape: tuple[int, ...], zero_point: int, limits: tuple[int, int], exponent: float
) -> None:
    values, gradient = drawn(shape)
    if len(shape) == 4:
        values = values.to(memory_format=torch.channels_last)
    zero = torch.tensor(zero_point, dtype=torch.int32, device=device())
    plain = both(lambda x, t: fake_quantize_power_of_two(x, t, zero, limits), values, gradient, exponent)
    coded = both(lambda x, t: coded_fake_quantize(x, t, zero, limits), values, gradient, exponent)
    assert torch.equal(coded[0], plain[0])
    assert torch.equal(coded[1], plain[1])
    torch.testing.assert_close(coded[2], plain[2], rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float_scale_has_the_results_and_gradients_of_the_plain_way(shape: tuple[int, ...]) -> None:
    values, gradient = drawn(shape)
    zero, limits = torch.tensor(0, dtype=torch.int32, device=device()), (-128, 127)
    weight = (values.numel() * 127) ** -0.5
    plain = both(lambda x, s: fake_quantize(x, s, zero, limits, None, Gradient.LSQ), values, gradient, 0.0237)
    coded = both(lambda x, s: coded_fake_quantize(x, s, zero, limits, weight), values, gradient, 0.0237)
    assert torch.equal(coded[0], plain[0])
    assert torch.equal(coded[1], plain[1])
    torch.testing.assert_close(coded[2], plain[2], rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("_way")
def test_narrow_floats_stay_in_their_type_and_on_the_grid() -> None:
    values, gradient = drawn((2, 3, 5, 7), torch.bfloat16)
    zero, limits = torch.tensor(0, dtype=torch.int32, device=device()), (-128, 127)
    plain = both(lambda x, t: fake_quantize_power_of_two(x, t, zero, limits), values, gradient, -4.0)
    coded = both(lambda x, t: coded_fake_quantize(x, t, zero, limits), values, gradient, -4.0)
    assert coded[0].dtype == torch.bfloat16
    assert torch.equal(coded[0], plain[0])
    assert torch.equal(coded[1], plain[1])


@pytest.mark.usefixtures("_way")
def test_gradients_of_any_layout_are_taken() -> None:
    values, _ = drawn((2, 8, 3, 3))
    zero, limits = torch.tensor(0, dtype=torch.int32, device=device()), (-128, 127)
    broadcast = torch.ones(2, 1, 1, 1, device=device()).expand(2, 8, 3, 3)
    sliced = torch.cat([values, values], 3)[..., ::2]
    plain = both(
        lambda x, t: fake_quantize_power_of_two(x[..., ::2], t, zero, limits), sliced, broadcast[..., :2], -5.0
    )
    coded = both(lambda x, t: coded_fake_quantize(x[..., ::2], t, zero, limits), sliced, broadcast[..., :2], -5.0)
    assert torch.equal(coded[0], plain[0])
    assert torch.equal(coded[1], plain[1])


def test_bytes_are_kept_where_operations_are_joined() -> None:
    assert is_coded(torch.zeros(2, device=device())) == torch.cuda.is_available()
    assert not is_coded(torch.zeros(2, dtype=torch.float64))
