"""onnxruntime's quantizer and calibrators, as reference implementations."""

import contextlib
import copy
import io
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.calibrate import create_calibrator

Sample = dict[str, np.ndarray]


class Reader(CalibrationDataReader):
    """A data reader for onnxruntime."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self._samples, None)


def oracle_model(model: onnx.ModelProto, samples: list[Sample], **options: Any) -> onnx.ModelProto:
    """Return the model that onnxruntime's static quantization writes, in QDQ format."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "quantized.onnx"
        # It changes its input model.
        quantize_static(copy.deepcopy(model), path, Reader(samples), quant_format=QuantFormat.QDQ, **options)
        return onnx.load(path)


def oracle_ranges(
    model: bytes, samples: list[Sample], method: CalibrationMethod, **options: Any
) -> dict[str, tuple[float, float]]:
    """Return the range of each tensor according to one of onnxruntime's calibrators."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "float.onnx"
        path.write_bytes(model)
        calibrator = create_calibrator(path, None, str(path.with_name("augmented.onnx")), method, extra_options=options)
        calibrator.collect_data(Reader(samples))
        found = {name: np.ravel(data.range_value) for name, data in calibrator.compute_data().items()}
    return {name: (float(ends[0]), float(ends[1])) for name, ends in found.items()}


@dataclass(frozen=True)
class Placed:
    """How one tensor is quantized: [C] or [1] scales and zero points, and the type."""

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: int


def placement(model: onnx.ModelProto) -> dict[str, Placed]:
    """Return the quantized tensors of a QDQ model by their names in the float model."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def placed(node: onnx.NodeProto) -> Placed:
        scale, zero_point = (numpy_helper.to_array(constants[name]).ravel() for name in node.input[1:3])
        return Placed(scale, zero_point.astype(np.int64), constants[node.input[2]].data_type)

    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            found[node.input[0].removesuffix("_QuantizeLinear_Input")] = placed(node)
        elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
            found[node.input[0].removesuffix("_quantized")] = placed(node)
    return found


def run_exactly(model: bytes, samples: list[Sample]) -> np.ndarray:
    """Run a model without any optimisation and return its first output for all samples."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options)
    return np.stack([session.run(None, sample)[0] for sample in samples])
