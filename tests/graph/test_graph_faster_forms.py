"""Average pools as depthwise convolutions, and zero padding as part of the convolution after it."""

import numpy as np
import onnx_ir as ir
import pytest

import quantry
from onnx_oracle import assert_same_outputs, from_text, op_types
from quantry.graph.passes.average_pool_to_conv import average_pool_to_conv
from quantry.graph.passes.fold_pads import fold_pads
from quantry.targets.backends import OrtCpu

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,9,9] x) => (float[N,C,H,W] y) '


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("attributes", "is_replaced"),
    [
        ("kernel_shape = [3, 3]", True),
        ("kernel_shape = [3, 2], strides = [2, 1]", True),
        ("kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1", True),
        ("kernel_shape = [3, 3], pads = [1, 0, 1, 1]", False),
        ("kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1", False),
        ('kernel_shape = [3, 3], auto_pad = "SAME_UPPER"', False),
    ],
)
def test_pool_becomes_a_convolution_where_every_window_has_the_same_weights(attributes: str, is_replaced: bool) -> None:
    proto = from_text(HEAD + f"{{ y = AveragePool<{attributes}>(x) }}")
    model = ir.from_proto(proto)
    assert bool(average_pool_to_conv(model)) == is_replaced
    assert op_types(model) == ["Conv" if is_replaced else "AveragePool"]
    assert_same_outputs(proto, model, rtol=1e-6)


@pytest.mark.parametrize(
    ("pad", "conv", "is_folded"),
    [
        ("Pad(x, sizes)", "pads = [1, 1, 1, 1]", True),
        ("Pad(x, sizes, zero)", 'auto_pad = "VALID"', True),
        ("Pad(x, sizes, one)", "pads = [0, 0, 0, 0]", False),
        ('Pad<mode = "reflect">(x, sizes)', "pads = [0, 0, 0, 0]", False),
        ("Pad(x, channels)", "group = 1", False),
        ("Pad(x, sizes)", 'auto_pad = "SAME_UPPER"', False),
    ],
)
def test_zero_padding_becomes_part_of_the_convolution(pad: str, conv: str, is_folded: bool) -> None:
    channels = [0, 1, 0, 0, 0, 0, 0, 0] if "channels" in pad else [0] * 8
    proto = from_text(
        HEAD + f"{{ p = {pad} y = Conv<{conv}>(p, w) }}",
        w=weights(5, 5 if any(channels) else 4, 3, 3),
        sizes=np.array([0, 0, 0, 1, 0, 0, 2, 1]),
        channels=np.array(channels),
        zero=np.float32(0),
        one=np.float32(1),
    )
    model = ir.from_proto(proto)
    assert bool(fold_pads(model)) == is_folded
    assert_same_outputs(proto, model, rtol=1e-6)


def test_model_for_the_cpu_has_no_slow_pool_and_no_float_padding() -> None:
    proto = from_text(
        HEAD + "{ p = Pad(x, sizes) c = Conv(p, w) r = Relu(c) a = AveragePool<kernel_shape = [3, 3]>(r) "
        "y = Conv(a, v) }",
        w=weights(8, 4, 3, 3),
        v=weights(4, 8, 1, 1),
        sizes=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )
    samples = [{"x": weights(1, 4, 9, 9)}]
    result = quantry.quantize(proto, samples, "CPU_INT8", target="ort-cpu", store=None)
    kernels = [entry.kernel for entry in OrtCpu().placement(result.to_bytes(), samples[0])]
    assert [kernel for kernel in kernels if kernel not in ("QuantizeLinear", "DequantizeLinear")] == [
        "QLinearConv",
        "QLinearConv",
        "QLinearConv",
        "QLinearConv",
    ]
    assert result.guard is not None
    assert result.guard.sqnr > 25
