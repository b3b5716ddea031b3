"""A model of a given size with external weights, for measuring growth with size."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from benchmarks.locations import NotAvailable, cache
from benchmarks.workloads.sample_folder import write_samples

_ROOM = 4
"""Free disk that must be there, as a multiple of the model: the peers write several copies."""


@dataclass(frozen=True)
class LargeModel:
    """A chain of square matrix products with Relu between, and one sample.

    Attributes:
        width: Rows and columns of each weight matrix.
        layers: Number of matrices.
    """

    width: int
    layers: int

    @property
    def bytes(self) -> int:
        """Size of the weights."""
        return self.width * self.width * 4 * self.layers

    def make(self) -> Mapping[str, Any]:
        """Write the model, if there is room for it."""
        folder = self._folder()
        path = folder / "model.onnx"
        if not path.exists():
            cache().mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(cache()).free
            if free < _ROOM * self.bytes:
                raise NotAvailable(
                    f"{self.bytes / 2**30:.1f} GB of weights need {_ROOM} times the disk, got {free} bytes"
                )
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._write(path)
        sample = {"x": np.random.default_rng(0).standard_normal((1, self.width), np.float32)}
        samples = write_samples(folder / "samples", [sample])
        return {"model": str(path), "samples": str(samples), "count": 1, "external_data": True}

    def discard(self) -> None:
        """Remove the model."""
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> Path:
        return cache() / "large" / f"{self.width}x{self.layers}"

    def _write(self, path: Path) -> None:
        rng = np.random.default_rng(0)
        each = self.width * self.width * 4
        with path.with_name("model.data").open("wb") as stream:
            for _ in range(self.layers):
                weight = rng.standard_normal((self.width, self.width), np.float32)
                weight *= np.float32((2 / self.width) ** 0.5)
                stream.write(weight.data)
        nodes, weights = [], []
        for index in range(self.layers):
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[self.width, self.width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "model.data"), ("offset", index * each), ("length", each)):
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            source = "x" if index == 0 else f"r{index - 1}"
            nodes.append(helper.make_node("MatMul", [source, f"w{index}"], [f"m{index}"], f"matmul{index}"))
            last = "y" if index == self.layers - 1 else f"r{index}"
            nodes.append(helper.make_node("Relu", [f"m{index}"], [last], f"relu{index}"))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, self.width]) for name in ("x", "y")]
        graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())
