"""A tiny network whose trials take milliseconds, and configurations of searches on it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantry.onnx import CalibrationMethod, QuantType
from quantry.onnx.auto_search import AutoSearchConfig

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 6, 6] x) => (float[1, 4] y)
<float[6, 3, 3, 3] w1, float[6] b1, float[4, 6] w2, float[4] b2>
{
    c = Conv (x, w1, b1)
    r = Relu (c)
    p = GlobalAveragePool (r)
    f = Flatten (p)
    y = Gemm <transB: int = 1> (f, w2, b2)
}
"""
SHAPES = {"w1": (6, 3, 3, 3), "b1": (6,), "w2": (4, 6), "b2": (4,)}


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NET)
    generator = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in SHAPES.items():
        values = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return model


def saved_net(folder: Path) -> str:
    path = folder / "float.onnx"
    onnx.save(net(), path)
    return str(path)


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [{"x": generator.normal(size=(1, 3, 6, 6)).astype(np.float32)} for _ in range(count)]


class Reader:
    """A minimal onnxruntime data reader, which can be read once."""

    def __init__(self) -> None:
        self._rest = iter(samples())

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


def space() -> dict[str, Any]:
    """The calibration space of document 000 without keys that have one value: six configurations."""
    return {
        "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
        "activation_type": [QuantType.QInt8, QuantType.QInt16],
        "extra_options": {"CalibMovingAverage": [False, True], "CalibMovingAverageConstant": [0.01]},
    }


def settings(folder: Path, **changes: Any) -> type[AutoSearchConfig]:
    """Return a new configuration class."""
    attributes = {"search_space": space(), "search_output_dir": str(folder / "out"), **changes}
    return type("MySearch", (AutoSearchConfig,), attributes)
