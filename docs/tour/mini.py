"""Quantization of one convolution, from float to integers and back, in plain numpy and onnx.

quantry does this for whole models, with many methods, types and rules; every idea in it is already here:

    observe   run the float model on a few samples and note what each tensor holds
    range     decide which real numbers shall be representable
    scale     from the range to a scale and a zero point
    emit      write an ONNX model with QuantizeLinear and DequantizeLinear
    evaluate  run it next to the float model and measure the difference

Run it: ``python docs/tour/mini.py``. Then read src/quantry/pipeline.py, which is the same list of calls.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import helper, numpy_helper

FLOAT_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
mini (float[1,3,16,16] x) => (float[1,8,16,16] y) {
    t = Conv<pads = [1,1,1,1]>(x, w, b)
    y = Relu(t)
}
"""


@dataclass(frozen=True)
class Grid:
    """The real numbers that one tensor can still hold: ``(integer - zero_point) * scale``."""

    scale: np.ndarray
    zero_point: np.ndarray


def float_model(weight: np.ndarray, bias: np.ndarray) -> onnx.ModelProto:
    """One convolution and its activation function, in float."""
    model = onnx.parser.parse_model(FLOAT_MODEL)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(numpy_helper.from_array(bias, "b"))
    return model


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Run a model as it is written, without fusions."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    return y


# 1. Observe.
def observe(model: onnx.ModelProto, samples: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Collect the values of the tensors to be quantized: the input and the output of the convolution.

    Not the tensor ``t`` between Conv and Relu: integer hardware keeps it in the accumulator, at full precision. quantry
    keeps histograms instead of values, so that memory does not grow with the number of samples.
    """
    return {"x": np.stack(samples), "y": np.stack([run(model, sample) for sample in samples])}


# 2. Range.
def percentile_range(values: np.ndarray, percentile: float) -> tuple[float, float]:
    """Cut rare large values off: a finer grid for the many is worth a clipped few."""
    low, high = np.percentile(values, [100 - percentile, percentile])
    # Zero must be on the grid: padding adds zeros, and Relu makes them.
    return min(float(low), 0.0), max(float(high), 0.0)


# 3. Scale.
def activation_grid(low: float, high: float) -> Grid:
    """Spread the 256 levels of uint8 over the range: asymmetric, because activations are rarely centred."""
    scale = (high - low) / 255
    zero_point = np.clip(np.rint(-low / scale), 0, 255)
    return Grid(np.float32(scale), zero_point.astype(np.uint8))


def weight_grid(weight: np.ndarray) -> Grid:
    """Give each output channel its own scale: symmetric int8, so that no product with a zero point is left over."""
    largest = np.abs(weight).max(axis=(1, 2, 3))
    return Grid((largest / 127).astype(np.float32), np.zeros(len(largest), np.int8))


def bias_grid(x: Grid, w: Grid) -> Grid:
    """Put the bias on the accumulator's own grid: a product of an input and a weight is a multiple of both scales."""
    scale = x.scale * w.scale
    return Grid(scale, np.zeros(scale.shape, np.int32))


def to_integers(values: np.ndarray, grid: Grid) -> np.ndarray:
    """Round to the nearest level, half to even, and saturate; what QuantizeLinear does."""
    limits = np.iinfo(grid.zero_point.dtype)
    scale = grid.scale.reshape(-1, *[1] * (values.ndim - 1)) if grid.scale.ndim else grid.scale
    levels = np.rint(values / scale) + grid.zero_point.reshape(scale.shape)
    return np.clip(levels, limits.min, limits.max).astype(grid.zero_point.dtype)


# 4. Emit.
def emit(model: onnx.ModelProto, grids: dict[str, Grid]) -> onnx.ModelProto:
    """Write integers for the constants and a Q/DQ pair after each activation; the float operators stay between them.

    Runtimes recognise DequantizeLinear -> Conv -> Relu -> QuantizeLinear and run it as one integer kernel.
    """
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    stored, nodes = [], []
    for name, grid in grids.items():
        stored.append(numpy_helper.from_array(grid.scale, f"{name}_scale"))
        stored.append(numpy_helper.from_array(grid.zero_point, f"{name}_zero"))
        if name in constants:
            stored.append(numpy_helper.from_array(to_integers(constants[name], grid), f"{name}_int"))
            axis = {"axis": 0} if grid.scale.ndim else {}
            nodes.append(helper.make_node("DequantizeLinear", _inputs(f"{name}_int", name), [f"{name}_dq"], **axis))
    float_y = "y_float"
    nodes += [
        helper.make_node("QuantizeLinear", _inputs("x", "x"), ["x_int"]),
        helper.make_node("DequantizeLinear", _inputs("x_int", "x"), ["x_dq"]),
        helper.make_node("Conv", ["x_dq", "w_dq", "b_dq"], ["t"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["t"], [float_y]),
        helper.make_node("QuantizeLinear", _inputs(float_y, "y"), ["y_int"]),
        helper.make_node("DequantizeLinear", _inputs("y_int", "y"), ["y"]),
    ]
    graph = helper.make_graph(nodes, "mini_int8", model.graph.input, model.graph.output, stored)
    quantized = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(quantized, full_check=True)
    return quantized


def _inputs(tensor: str, grid: str) -> list[str]:
    return [tensor, f"{grid}_scale", f"{grid}_zero"]


# 5. Evaluate.
def sqnr(reference: np.ndarray, other: np.ndarray) -> float:
    """Signal to quantization noise in decibel; each bit is worth about six."""
    return float(10 * np.log10(np.square(reference).sum() / np.square(reference - other).sum()))


def main(percentile: float = 100.0) -> float:
    """Do all of it, and return the score on a sample that was not observed."""
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=(8, 3, 3, 3)) * np.geomspace(0.05, 1, 8).reshape(-1, 1, 1, 1)).astype(np.float32)
    bias = rng.normal(size=8).astype(np.float32)
    samples = [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(9)]
    model = float_model(weight, bias)

    observed = observe(model, samples[:-1])
    x, y = (activation_grid(*percentile_range(observed[name], percentile)) for name in ("x", "y"))
    w = weight_grid(weight)
    quantized = emit(model, {"x": x, "w": w, "b": bias_grid(x, w), "y": y})
    score = sqnr(run(model, samples[-1]), run(quantized, samples[-1]))

    sizes = len(model.SerializeToString()), len(quantized.SerializeToString())
    print(f"percentile {percentile:6.2f}: SQNR {score:.1f} dB, file of {sizes[0]} bytes became {sizes[1]}")
    return score


if __name__ == "__main__":
    for cut in (100.0, 99.99, 99.0, 90.0):
        main(cut)
