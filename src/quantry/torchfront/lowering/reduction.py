"""Pooling, means, normalization and resizing: operators that look at a neighbourhood or an axis."""

from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.torchfront.lowering.call import Call, fixed
from quantry.torchfront.lowering.elementwise import Lowering
from quantry.torchfront.lowering.graph_writer import GraphWriter


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
    """``aten.adaptive_avg_pool2d``: over everything, or with windows that divide the size."""
    wanted = list(call["output_size"])
    if all(size == 1 for size in wanted):
        return writer.op("GlobalAveragePool", [call.first])
    sizes = fixed(call.first_meta.shape[-len(wanted) :], "the pooled size", call.node)
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        raise ModelError(
            f"adaptive_avg_pool2d must divide its input evenly, got {sizes} into {wanted}; in {call.node.name}; use "
            "avg_pool2d with the window you mean"
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
    """``aten.batch_norm`` with its running statistics, whatever the mode it was captured in."""
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
    # ONNX weighs the old statistics, torch the new ones.
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


LOWERINGS = {
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
