"""The compiled kernels give the results and gradients of the reference, and leave to torch what they cannot read."""

import copy
import io
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_implementations import Function, both, drawn, reference

from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.numerics import kernels, torch_kernels
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_kernels import can_read, torch_openmp
from quantry.numerics.torch_quantizer import Gradient, fake_quantize
from quantry.recipe import DataType, PowerOfTwoScale, TensorSpec

GRIDS = [(0, (-128, 127)), (0, (-127, 127)), (128, (0, 255)), (3, (-8, 7)), (0, (-32768, 32767))]
SHAPES = [(), (0,), (1,), (17,), (3, 5, 7, 11), (2, 64, 8, 12), (5, 40_001)]

ZERO = torch.tensor(0, dtype=torch.int32)

pytestmark = pytest.mark.skipif(not can_read(torch.zeros(1)), reason="no compiled kernels")


def fixed(x: Tensor, t: Tensor) -> Tensor:
    """Quantize with a fixed power of two."""
    return fake_quantize(x, torch.exp2(torch.round(t.detach())), ZERO, (-128, 127))


def learned(x: Tensor, t: Tensor) -> Tensor:
    """Quantize with a learned power of two."""
    return fake_quantize(x, t, ZERO, (-128, 127), None, Gradient.TQT)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("zero_point", "limits"), GRIDS, ids=str)
@pytest.mark.parametrize("scale", [2.0**-5, 0.0237, 2.0**-12])
def test_fixed_scale_equals_the_reference(
    shape: tuple[int, ...], zero_point: int, limits: tuple[int, int], scale: float
) -> None:
    values, gradient = drawn(shape)
    zero = torch.tensor(zero_point, dtype=torch.int32)
    expected = both(lambda x, s: reference(x, s.detach(), zero, limits), values, gradient, scale)
    found = both(lambda x, s: fake_quantize(x, s.detach(), zero, limits), values, gradient, scale)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[0].shape == shape


@pytest.mark.parametrize("gradient_of", [Gradient.LSQ, Gradient.TQT, Gradient.LOG2])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize(("zero_point", "limits"), GRIDS, ids=str)
def test_learned_scale_equals_the_reference(
    gradient_of: Gradient, shape: tuple[int, ...], zero_point: int, limits: tuple[int, int]
) -> None:
    values, gradient = drawn(shape)
    parts = torch.tensor(zero_point, dtype=torch.int32), limits, None, gradient_of
    scale = 0.0237 if gradient_of is Gradient.LSQ else -4.3
    expected = both(lambda x, s: reference(x, s, *parts), values, gradient, scale)
    found = both(lambda x, s: fake_quantize(x, s, *parts), values, gradient, scale)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2], rtol=1e-4, atol=1e-4)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.integers(-120, 120),
)
def test_any_number_and_any_power_of_two(numbers: list[float], exponent: int) -> None:
    values, scale = torch.tensor(numbers), torch.tensor(2.0**exponent)
    expected = reference(values, scale, ZERO, (-128, 127))
    np.testing.assert_array_equal(fake_quantize(values, scale, ZERO, (-128, 127)), expected)


def test_nan_stays_nan_and_gets_no_gradient() -> None:
    """Torch's own kernel returns the smallest level for NaN, which hides where it came from."""
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], requires_grad=True)
    result = fake_quantize(values, torch.tensor(0.5), ZERO, (-128, 127))
    np.testing.assert_array_equal(result.detach(), [np.nan, 63.5, -64.0, 1.0])
    result.sum().backward()
    np.testing.assert_array_equal(values.grad, [0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("function", [fixed, learned])
def test_memory_layouts(function: Function) -> None:
    values, gradient = drawn((2, 8, 6, 4))
    expected = both(function, values, gradient, -5.0)
    last = torch.channels_last
    other = both(function, values.to(memory_format=last), gradient, -5.0)
    assert other[0].is_contiguous(memory_format=last)
    for found, wanted in zip(other, expected, strict=True):
        assert (found is None and wanted is None) or torch.allclose(found, wanted, rtol=1e-5)  # type: ignore[arg-type]
    wide = values.repeat_interleave(2, 3)
    sliced = both(lambda x, t: function(x[..., ::2], t), wide, gradient, -5.0)
    assert torch.equal(sliced[0], expected[0])
    assert torch.equal(sliced[1][..., ::2], expected[1])
    turned = both(lambda x, t: function(x.permute(1, 3, 0, 2), t).permute(2, 0, 3, 1), values, gradient, -5.0)
    assert torch.equal(turned[0], expected[0])
    assert torch.equal(turned[1], expected[1])
    flat = both(function, values, torch.ones(1, 1, 1, 1).expand(2, 8, 6, 4), -5.0)
    assert torch.equal(flat[0], expected[0])


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("count", [(1 << 17) - 1, (1 << 18) + 5, 1_000_003])
def test_several_threads_give_the_bits_of_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, gradient = drawn((count,))
    many = [both(function, values, gradient, -5.0) for function in (fixed, learned)]
    monkeypatch.setattr(torch_kernels, "torch_openmp", lambda: None)
    for found, function in zip(many, (fixed, learned), strict=True):
        alone = both(function, values, gradient, -5.0)
        assert torch.equal(found[0], alone[0])
        assert torch.equal(found[1], alone[1])
        assert (found[2] is None and alone[2] is None) or torch.equal(found[2], alone[2])  # type: ignore[arg-type]


@pytest.mark.skipif(torch.__config__.parallel_info().find("backend: OpenMP") < 0, reason="torch does not use OpenMP")
def test_openmp_of_torch_is_found() -> None:
    assert torch_openmp() is not None


@pytest.mark.parametrize("function", [fixed, learned])
def test_saved_tensors_may_come_back_with_other_strides(function: Function) -> None:
    """Hooks on saved tensors may change strides."""

    def padded(saved: Tensor) -> Tensor:
        if saved.dim() < 2:
            return saved
        wide = torch.zeros(*saved.shape[:-1], saved.shape[-1] + 3, dtype=saved.dtype)
        wide[..., :-3] = saved
        return wide

    def cut(saved: Tensor) -> Tensor:
        return saved if saved.dim() < 2 else saved[..., :-3]

    values, gradient = drawn((6, 40))
    wanted = both(function, values * 3, gradient, -5.0)
    with torch.autograd.graph.saved_tensors_hooks(padded, cut):
        found = both(function, values * 3, gradient, -5.0)
    assert torch.equal(found[1], wanted[1])
    assert found[2] is None or torch.equal(found[2], wanted[2])  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [fixed, learned])
def test_gradients_that_memory_does_not_hold(function: Function) -> None:
    x, t = drawn((40,))[0].mul(3).requires_grad_(), torch.tensor(-5.0, requires_grad=True)
    result = function(x, t)
    levels = x.detach().mul(32).round()
    inside = ((levels >= -128) & (levels <= 127)).float()
    for gradient in (torch._neg_view(torch.ones(40)), torch._efficientzerotensor((40,))):
        (found,) = torch.autograd.grad(result, x, gradient, retain_graph=True)
        assert torch.equal(found, inside * gradient.clone())
    many = torch.randn(3, 40)
    (found,) = torch.autograd.grad(result, x, many, is_grads_batched=True)
    assert torch.equal(found, inside * many)


def test_values_that_memory_does_not_hold_are_left_to_torch() -> None:
    negative = torch.complex(torch.ones(1), torch.ones(1)).conj().imag
    assert negative.is_neg()
    assert quantizer()(negative).item() == -1.0
    assert quantizer()(torch._efficientzerotensor((5,))).tolist() == [0.0] * 5


@pytest.mark.parametrize("function", [fixed, learned])
def test_results_have_the_memory_layout_of_dense_values(function: Function) -> None:
    turned = torch.randn(2, 3, 4, 5).permute(0, 2, 3, 1)
    deep = torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    for values in (turned, deep, torch.randn(4, 6).t()):
        assert function(values, torch.tensor(-5.0)).stride() == values.stride()


def test_gradient_of_the_scale_may_overflow() -> None:
    values, learned_scale = torch.full((4,), 1e6), torch.tensor(4.0, requires_grad=True)
    fake_quantize(values, learned_scale, ZERO, (-128, 127), None, Gradient.TQT).backward(torch.full((4,), 5e35))
    assert learned_scale.grad is not None
    assert learned_scale.grad.isinf()


def test_second_derivatives_with_a_learned_scale() -> None:
    x, t = torch.linspace(-6, 6, 9, requires_grad=True), torch.tensor(-5.0, requires_grad=True)
    result = learned(x, t)
    by_values, by_scale = torch.autograd.grad((result**2).sum(), (x, t), create_graph=True)
    (bend,) = torch.autograd.grad(by_values.sum(), x, retain_graph=True)
    np.testing.assert_array_equal(bend, 2.0 * (x.detach().abs() < 4))
    (mixed,) = torch.autograd.grad(by_scale, x)
    assert torch.isfinite(mixed).all()


def test_second_derivatives_with_a_fixed_scale() -> None:
    x = torch.linspace(-6, 6, 9, requires_grad=True)
    result = fake_quantize(x, torch.tensor(0.03125), ZERO, (-128, 127))
    (slope,) = torch.autograd.grad((result**2).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    np.testing.assert_array_equal(bend, 2.0 * (x.detach().abs() < 4))


def quantizer(exponent: int = -5) -> FakeQuantizer:
    params = TensorParams(DataType.INT8, np.float32(2.0**exponent), np.int32(0), None)
    return FakeQuantizer(params, TensorSpec(DataType.INT8, scale=PowerOfTwoScale()), constant=False)


def test_the_module_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(torch_kernels, "_compute", lambda name, *_, **__: called.append(name))
    module = quantizer()
    module(torch.randn(4, requires_grad=True)).sum().backward()
    module.learn(Gradient.TQT)
    module(torch.randn(4, requires_grad=True)).sum().backward()
    assert called == ["quantize", "pass_inside", "quantize", "learn"]


def test_another_type_is_left_to_torch() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert not can_read(torch.zeros(2, dtype=dtype))
    assert not can_read(torch.zeros(2, device="meta"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_traced_and_transformed_modules_compute() -> None:
    """A traced or transformed module contains operations, not the constants of one call."""
    module, x = quantizer(), torch.randn(3, 5)
    other = torch.randn(3, 5)
    expected = module(other)
    traced = torch.jit.trace(module, x)
    torch.testing.assert_close(traced(other), expected, rtol=0, atol=0)
    mapped = torch.func.vmap(module)(other)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=0)
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.testing.assert_close(make_fx(module)(x)(other), expected, rtol=0, atol=0)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(other), expected, rtol=0, atol=0)


def test_modules_can_be_copied_and_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 4), quantizer())
    x = torch.randn(2, 4)
    model(x).sum().backward()
    buffer = io.BytesIO()
    torch.save(copy.deepcopy(model), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), model(x))


def test_checkpointed_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    module, x = quantizer(), torch.randn(64, requires_grad=True)
    checkpoint(module, x, use_reentrant=False).sum().backward()
    wanted = (x.detach().div(2.0**-5).round().abs() <= 127.5).float()
    assert x.grad is not None
    assert torch.equal(x.grad, wanted)


def test_without_compiled_kernels_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = quantizer(), torch.randn(300) * 3
    expected = module(x)
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    assert not can_read(x)
    assert torch.equal(module(x), expected)
