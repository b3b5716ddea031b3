"""A chain of convolutions, for growth with the number of layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.locations import cache
from benchmarks.workloads.sample_folder import write_samples

_CHANNELS, _SIDE, _SAMPLES = 16, 16, 4


@dataclass(frozen=True)
class ConvChain:
    """A number of 3x3 convolutions with 16 channels on 16x16 pixels, each followed by Relu, and four samples.

    Attributes:
        layers: Number of convolutions.
    """

    layers: int

    def make(self) -> Mapping[str, Any]:
        """Write the model and the samples, once."""
        path = cache() / "chain" / f"conv{self.layers}.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(self._model(), path)
        rng = np.random.default_rng(0)
        shape = (1, _CHANNELS, _SIDE, _SIDE)
        samples = ({"x": rng.standard_normal(shape, np.float32)} for _ in range(_SAMPLES))
        folder = write_samples(cache() / "chain" / "samples", samples)
        return {"model": str(path), "samples": str(folder), "count": _SAMPLES}

    def discard(self) -> None:
        """Keep everything: it is small."""

    def _model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(self.layers)
        nodes, weights = [], []
        spread = (2 / (_CHANNELS * 9)) ** 0.5
        for index in range(self.layers):
            kernel = rng.normal(0, spread, (_CHANNELS, _CHANNELS, 3, 3)).astype(np.float32)
            bias = rng.normal(0, 0.01, _CHANNELS).astype(np.float32)
            weights += [numpy_helper.from_array(kernel, f"w{index}"), numpy_helper.from_array(bias, f"b{index}")]
            inputs = ["x" if index == 0 else f"r{index - 1}", f"w{index}", f"b{index}"]
            nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], f"conv{index}", pads=[1, 1, 1, 1]))
            last = "y" if index == self.layers - 1 else f"r{index}"
            nodes.append(helper.make_node("Relu", [f"c{index}"], [last], f"relu{index}"))
        shape = [1, _CHANNELS, _SIDE, _SIDE]
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
