"""Lowerings of layers: convolutions, matrix products, normalizations, pooling, reductions and resizing."""

from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.torchfront.lowering.arithmetic import Lowering
from quantry.torchfront.lowering.graph_writer import Call, GraphWriter, fixed


def convolution(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.conv1d``, ``conv2d``, ``conv3d`` and ``convolution``."""
    if call.get("transposed", default=False):
        return _transposed(writer, call)
    spatial = call.meta("weight").dim() - 2
    attributes: dict[str, Any] = {
        "strides": _spread(call.get("stride", 1), spatial),
        "dilations": _spread(call.get("dilation", 1), spatial),
        "group": call["groups"],
    }
    padding = call.get("padding", 0)
    if isinstance(padding, str):
        attributes["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[padding]
    else:
        attributes["pads"] = _spread(padding, spatial) * 2
    return writer.op("Conv", _operands(call), attributes)


def transposed_convolution(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.conv_transpose1d`` and ``conv_transpose2d``."""
    return _transposed(writer, call)


def linear(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.linear``: Gemm for matrices, MatMul and Add for more axes."""
    if call.rank() == 2:
        return writer.op("Gemm", _operands(call), {"transB": 1})
    weight = writer.op("Transpose", [call["weight"]], {"perm": (1, 0)})
    product = writer.op("MatMul", [call["input"], weight])
    return product if call["bias"] is None else writer.op("Add", [product, call["bias"]])


def addmm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.addmm``."""
    attributes = {"alpha": float(call.get("alpha", 1)), "beta": float(call.get("beta", 1))}
    return writer.op("Gemm", [call["mat1"], call["mat2"], call["self"]], attributes)


def matmul(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.matmul``, ``mm`` and ``bmm``."""
    return writer.op("MatMul", [call["self"], call.get("other", call.get("mat2"))])


def attention(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.scaled_dot_product_attention`` as MatMul, Softmax and MatMul."""
    if call.get("is_causal", default=False) or call.get("enable_gqa", default=False):
        raise ModelError(
            "scaled_dot_product_attention can be captured without is_causal and enable_gqa only, got one of them; in "
            f"{call.node.name}; give an explicit attn_mask instead"
        )
    rank = call.rank("query")
    factor = call.get("scale", fixed([call.meta("query").shape[-1]], "the head's width", call.node)[0] ** -0.5)
    order = (*range(rank - 2), rank - 1, rank - 2)
    scores = writer.op("MatMul", [call["query"], writer.op("Transpose", [call["key"]], {"perm": order})])
    scores = writer.op("Mul", [scores, writer.constant(float(factor))])
    if call["attn_mask"] is not None:
        scores = writer.op("Add", [scores, call["attn_mask"]])
    return writer.op("MatMul", [writer.op("Softmax", [scores], {"axis": -1}), call["value"]])


def _transposed(writer: GraphWriter, call: Call) -> ir.Value:
    spatial = call.meta("weight").dim() - 2
    return writer.op(
        "ConvTranspose",
        _operands(call),
        {
            "strides": _spread(call.get("stride", 1), spatial),
            "pads": _spread(call.get("padding", 0), spatial) * 2,
            "output_padding": _spread(call.get("output_padding", 0), spatial),
            "dilations": _spread(call.get("dilation", 1), spatial),
            "group": call["groups"],
        },
    )


def _operands(call: Call) -> list[ir.Value]:
    operands = [call["input"], call["weight"]]
    return operands if call["bias"] is None else [*operands, call["bias"]]


def _spread(value: Any, count: int) -> tuple[int, ...]:
    """Return one number per spatial axis; torch repeats a single number."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def group_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.group_norm``: instance normalization with one channel per group, then gain and offset per channel."""
    shape = [int(size) if isinstance(size, int) else 0 for size in call.first_meta.shape]
    groups = int(call["num_groups"])
    rows = writer.op("Reshape", [call.first, writer.ints([0, groups, -1])])
    normal = _normalized(writer, rows, groups, float(call.get("eps", 1e-5)))
    inner = fixed(call.first_meta.shape[1:], "sizes after the batch", call.node)
    result = writer.op("Reshape", [normal, writer.ints([shape[0], *inner])])
    return _by_channel(writer, call, result, len(shape))


def instance_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.instance_norm`` with the statistics of each sample."""
    if not call["use_input_stats"]:
        raise ModelError(
            f"instance_norm must use the statistics of its input, got running ones; in {call.node.name}; make it with "
            "track_running_stats=False"
        )
    channels = int(call.first_meta.shape[1])
    normal = _normalized(writer, call.first, channels, float(call.get("eps", 1e-5)))
    return _by_channel(writer, call, normal, call.first_meta.dim())


def _normalized(writer: GraphWriter, x: ir.Value, channels: int, epsilon: float) -> ir.Value:
    gains = writer.constant(np.ones(channels)), writer.constant(np.zeros(channels))
    return writer.op("InstanceNormalization", [x, *gains], {"epsilon": epsilon})


def _by_channel(writer: GraphWriter, call: Call, x: ir.Value, rank: int) -> ir.Value:
    """Multiply by the gain and add the offset of each channel, if there are any."""
    sizes = [-1, *[1] * (rank - 2)]
    for operator, name in (("Mul", "weight"), ("Add", "bias")):
        value = call[name]
        if value is not None:
            aligned = value if rank == 2 else writer.op("Reshape", [value, writer.ints(sizes)])
            x = writer.op(operator, [x, aligned])
    return x


def max_pool(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.max_pool1d`` and ``max_pool2d``."""
    return writer.op("MaxPool", [call.first], _window(call))


def average_pool(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.avg_pool1d`` and ``avg_pool2d``."""
    if call.get("divisor_override"):
        raise ModelError(f"avg_pool must divide by the window's size, got divisor_override; in {call.node.name}")
    counted = int(call.get("count_include_pad", default=True))
    return writer.op("AveragePool", [call.first], {**_window(call), "count_include_pad": counted})


def adaptive_average_pool(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.adaptive_avg_pool2d``: global, or with windows that divide the size."""
    wanted = list(call["output_size"])
    if all(size == 1 for size in wanted):
        return writer.op("GlobalAveragePool", [call.first])
    sizes = fixed(call.first_meta.shape[-len(wanted) :], "the pooled size", call.node)
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        raise ModelError(
            f"adaptive_avg_pool2d must divide its input evenly, got {sizes} into {wanted}; in {call.node.name}; use "
            "avg_pool2d with an explicit window"
        )
    window = [size // parts for size, parts in zip(sizes, wanted, strict=True)]
    return writer.op("AveragePool", [call.first], {"kernel_shape": window, "strides": window})


def reduction(operator: str, *, axes_are_input: bool = False) -> Lowering:
    """Return the lowering of a reduction over axes."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        axes = call.get("dim", list(range(call.first_meta.dim())))
        axes = [axes] if isinstance(axes, int) else list(axes)
        attributes: dict[str, Any] = {"keepdims": int(call.get("keepdim", default=False))}
        if axes_are_input:
            return writer.op(operator, [call.first, writer.ints(axes)], attributes)
        return writer.op(operator, [call.first], {**attributes, "axes": axes})

    return lower


def softmax(operator: str) -> Lowering:
    """Return the lowering of Softmax or LogSoftmax."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        return writer.op(operator, [call.first], {"axis": call["dim"]})

    return lower


def layer_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.layer_norm``."""
    shape = call["normalized_shape"]
    weight = writer.constant(np.ones(shape)) if call["weight"] is None else call["weight"]
    operands = [call["input"], weight, *([] if call["bias"] is None else [call["bias"]])]
    return writer.op("LayerNormalization", operands, {"axis": -len(shape), "epsilon": float(call.get("eps", 1e-5))})


def batch_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.batch_norm`` with its running statistics, in whichever mode it was captured."""
    mean, variance = call["running_mean"], call["running_var"]
    if mean is None or variance is None:
        raise ModelError(
            f"batch_norm must track running statistics to be quantized, got none; in {call.node.name}; make it with "
            "track_running_stats=True"
        )
    channels = call.first_meta.shape[1]
    weight = writer.constant(np.ones(channels)) if call["weight"] is None else call["weight"]
    bias = writer.constant(np.zeros(channels)) if call["bias"] is None else call["bias"]
    operands = [call["input"], weight, bias, mean, variance]
    # The momentum of ONNX is the weight of the old statistics, that of torch the weight of the new ones.
    momentum = 1.0 - float(call.get("momentum", 0.1))
    return writer.op("BatchNormalization", operands, {"epsilon": float(call["eps"]), "momentum": momentum})


def nearest(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.upsample_nearest2d``."""
    return _resize(writer, call, {"mode": "nearest", "nearest_mode": "floor"}, "asymmetric")


def bilinear(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.upsample_bilinear2d``."""
    aligned = call.get("align_corners", default=False)
    return _resize(writer, call, {"mode": "linear"}, "align_corners" if aligned else "half_pixel")


def _resize(writer: GraphWriter, call: Call, attributes: dict[str, Any], transformation: str) -> ir.Value:
    before, after = call.first_meta.shape[2:], call.result.shape[2:]
    given = call.get("scale_factors") or [call.get("scales_h"), call.get("scales_w")]
    if all(factor is not None for factor in given):
        factors = [float(factor) for factor in given]
    else:
        sizes = [fixed(part, "the resized size", call.node) for part in (before, after)]
        factors = [new / old for old, new in zip(*sizes, strict=True)]
    scales = writer.constant(np.asarray([1.0, 1.0, *factors], np.float32))
    return writer.op(
        "Resize", [call.first, None, scales], {**attributes, "coordinate_transformation_mode": transformation}
    )


def _window(call: Call) -> dict[str, Any]:
    kernel = _numbers(call["kernel_size"], call)
    spatial = len(kernel)
    window: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _numbers(call.get("stride") or kernel, call, spatial),
        "pads": _numbers(call.get("padding", 0), call, spatial) * 2,
        "ceil_mode": int(call.get("ceil_mode", default=False)),
    }
    dilation = _numbers(call.get("dilation", 1), call, spatial)
    return window if set(dilation) == {1} else {**window, "dilations": dilation}


def _numbers(value: Any, call: Call, count: int | None = None) -> list[int]:
    spatial = count or (1 if "1d" in str(call.node.target) else 2)
    if isinstance(value, int):
        return [value] * spatial
    return list(value) * spatial if len(value) == 1 else list(value)


LOWERINGS: dict[str, Lowering] = {
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "convolution": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "linear": linear,
    "addmm": addmm,
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "scaled_dot_product_attention": attention,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "avg_pool1d": average_pool,
    "avg_pool2d": average_pool,
    "adaptive_avg_pool1d": adaptive_average_pool,
    "adaptive_avg_pool2d": adaptive_average_pool,
    "mean": reduction("ReduceMean"),
    "sum": reduction("ReduceSum", axes_are_input=True),
    "amax": reduction("ReduceMax"),
    "amin": reduction("ReduceMin"),
    "softmax": softmax("Softmax"),
    "log_softmax": softmax("LogSoftmax"),
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "upsample_nearest2d": nearest,
    "upsample_bilinear2d": bilinear,
}
