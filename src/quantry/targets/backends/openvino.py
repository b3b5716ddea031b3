"""Intel OpenVINO on the CPU."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError
from quantry.graph.qdq import is_pair_node, read_through
from quantry.runtime.sessions import SessionModel, loadable
from quantry.targets.backends.backend import Arrays, Backend, PlacedNode, Runner
from quantry.targets.backends.ort_cpu import installed_version, nodes_of, require

_TIMED_RUNS = 3
# What OpenVINO calls its types, in our words.
_TYPES = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "f32": "float", "f16": "float16"}
_REDUCED = ("uint8", "int8")


class OpenVino(Backend):
    """OpenVINO's CPU plugin."""

    name = "openvino"
    product = "OpenVINO"
    licence = "Apache-2.0"
    install = "pip install quantry[openvino]"
    device = "CPU"

    def version(self) -> str | None:
        """Return the version of OpenVINO."""
        return installed_version("openvino")

    def open(self, model: SessionModel, threads: int | None = None) -> Runner:
        """Compile a model for the CPU; float nodes are computed in float32."""
        return _CompiledRunner(self._compiled(model, threads))

    def placement(self, model: SessionModel, feeds: Arrays) -> tuple[PlacedNode, ...]:
        """Return the layers of the runtime model, with their precision and times."""
        compiled = self._compiled(model, None, counters=True)
        runner = _CompiledRunner(compiled)
        for _ in range(_TIMED_RUNS):
            runner.run(feeds)
        layers: dict[str, dict[str, str]] = {}
        for layer in compiled.get_runtime_model().get_ordered_ops():
            facts = {key: value.astype(str) for key, value in layer.get_rt_info().items()}
            facts["name"] = layer.get_friendly_name()
            for original in facts.get("originalLayersNames", "").split(","):
                # Constants of a node have names of their own; the last layer of that name computes it.
                if facts.get("layerType") != "Const":
                    # A node is split into parts, such as Conv/WithoutBiases.
                    layers[original.partition("/")[0]] = layers[original] = facts
        return tuple(
            _placed(node.name or "", node.op_type, layers, quantized=any(read_through(value) for value in node.inputs))
            for node in nodes_of(model)
            if not is_pair_node(node)
        )

    def _compiled(self, model: SessionModel, threads: int | None, *, counters: bool = False) -> Any:
        require(self)
        if "openvino" not in sys.modules:
            # OpenVINO works without its telemetry package; None makes that import fail.
            sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        openvino = importlib.import_module("openvino")
        options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        options |= {} if threads is None else {"INFERENCE_NUM_THREADS": str(threads)}
        options |= {"PERF_COUNT": "YES"} if counters else {}
        core = openvino.Core()
        try:
            if isinstance(model, str | Path | bytes):
                return core.compile_model(core.read_model(model), "CPU", options)
            with loadable(model) as written:
                return core.compile_model(core.read_model(written.source), "CPU", options)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO must be able to load the model, got {_last_line(error)}") from error


class _CompiledRunner(Runner):
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run the compiled model once."""
        try:
            results = self._request.infer(dict(feeds), share_inputs=True)
        except RuntimeError as error:
            feeds_text = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
            raise DataError(
                f"the model must be able to run on the inputs, got {feeds_text}; OpenVINO: {_last_line(error)}"
            ) from error
        return {output.get_any_name(): np.array(results[output]) for output in self._compiled.outputs}


def _placed(name: str, operator: str, layers: dict[str, dict[str, str]], *, quantized: bool) -> PlacedNode:
    layer = layers.get(name)
    if layer is None:
        return PlacedNode(name, operator, "", "", "", "", why="removed or folded by the compiler")
    precision = _TYPES.get(layer["runtimePrecision"], layer["runtimePrecision"])
    is_own = layer["name"].partition("/")[0] == name
    time = layer.get("execTimeMcs", "")
    return PlacedNode(
        node=name,
        operator=operator,
        kernel=f"{layer['layerType']} {layer['primitiveType']}",
        unit=layer["name"],
        precision=precision,
        device="CPU",
        milliseconds=int(time) / 1000 if is_own and time.isdigit() else None,
        why=f"OpenVINO computes it in {precision}" if quantized and precision not in _REDUCED else "",
    )


def _last_line(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
