"""Qualcomm's HTP backend through onnxruntime: on x86 Linux an emulator with the arithmetic of the NPU."""

import platform
from typing import Any

import onnx_ir as ir

from quantry.errors import ModelError
from quantry.graph.qdq import is_dequantize, is_pair_node, is_quantize, read_through
from quantry.runtime.sessions import PluginProvider, SessionModel, SessionOptions, open_session
from quantry.targets.backends.backend import Arrays, Backend, PlacedNode, Runner
from quantry.targets.backends.htp_arithmetic import write_htp_arithmetic
from quantry.targets.backends.ort_cpu import (
    SessionRunner,
    installed_version,
    nodes_of,
    placed,
    profiled_kernels,
    require,
)
from quantry.targets.backends.refused_units import refusal, refused_units

_PROVIDER = "QNNExecutionProvider"
_ARCHITECTURE = "73"  # Snapdragon 8 Gen 2 and X Elite, the first with 16-bit weights of Conv


class Qnn(Backend):
    """The HTP backend of QNN."""

    name = "qnn"
    product = "onnxruntime-qnn"
    licence = "Qualcomm's own, in the wheel; onnxruntime MIT"
    install = "pip install quantry[qnn]"
    device = "HTP"
    # The library for x86 has the arithmetic of the NPU, computed on the CPU.
    emulated = platform.machine().lower() in ("x86_64", "amd64")

    def version(self) -> str | None:
        """Return the version of onnxruntime-qnn."""
        return installed_version("onnxruntime-qnn")

    def open(self, model: SessionModel, threads: int | None = None) -> Runner:
        """Open a session that runs every node on HTP; a node that does not fit is an error."""
        return SessionRunner(self._session(model))

    def write_arithmetic(self, model: ir.Model) -> None:
        """Write out how HTP rounds; see `quantry.targets.backends.htp_arithmetic`."""
        write_htp_arithmetic(model)

    def placement(self, model: SessionModel, feeds: Arrays) -> tuple[PlacedNode, ...]:
        """Return the device of every node, and why it is the CPU.

        A session with fallback disabled says whether all nodes run on HTP. If not, the units of the graph (an operator
        with its pairs) are tried one by one, and refused ones have QNN's own message.
        """
        nodes = nodes_of(model)
        try:
            self._session(model)
        except ModelError as error:
            return self._partly(model, nodes, feeds, error)
        return tuple(_on_htp(node) for node in nodes if not is_pair_node(node))

    def _partly(
        self, model: SessionModel, nodes: list[ir.Node], feeds: Arrays, error: ModelError
    ) -> tuple[PlacedNode, ...]:
        refused = refused_units(nodes, self._session)
        try:
            kernels = profiled_kernels(model, feeds, SessionOptions(plugin=self._plugin(cpu_fallback=True)))
        except ModelError:
            # The session fails as a whole, because of one of its units.
            kernels = []
        on_cpu = {entry.node: entry for entry in placed(nodes, [k for k in kernels if k.provider != _PROVIDER], "CPU")}
        table = []
        for node in nodes:
            if is_pair_node(node):
                continue
            name = node.name or ""
            reason = refused.get(name, "")
            ran = on_cpu.get(name)
            if reason or (ran is not None and ran.kernel):
                kernel, precision = (ran.kernel, ran.precision) if ran is not None else ("", "")
                why = reason or refusal(error)
                table.append(PlacedNode(name, node.op_type, kernel, name, precision, "CPU", why=why))
            else:
                table.append(_on_htp(node))
        return tuple(table)

    def _session(self, model: SessionModel) -> Any:
        return open_session(model, SessionOptions(plugin=self._plugin(cpu_fallback=False)))

    def _plugin(self, *, cpu_fallback: bool) -> PluginProvider:
        require(self)
        import onnxruntime
        import onnxruntime_qnn

        onnxruntime.disable_telemetry_events()
        options = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": _ARCHITECTURE}
        return PluginProvider(_PROVIDER, onnxruntime_qnn.get_library_path(), options, cpu_fallback)


def _on_htp(node: ir.Node) -> PlacedNode:
    unit = _unit(node)
    return PlacedNode(node.name or "", node.op_type, "QNN", unit.name or "", _precision(unit), "HTP")


def _unit(node: ir.Node) -> ir.Node:
    """Return the operator that a function without a pair before it is part of, such as the Conv before a Clip."""
    value = node.inputs[0] if node.inputs else None
    source = None if value is None else value.producer()
    if value is None or source is None or is_dequantize(source) or len(value.uses()) > 1:
        return node
    readers = [use.node for output in node.outputs for use in output.uses()]
    return _unit(source) if readers and all(map(is_quantize, readers)) else node


def _precision(node: ir.Node) -> str:
    """Return the type that a node reads through a pair, else that of its first input."""
    for value in node.inputs:
        tensor = read_through(value)
        if tensor is not None and tensor.dtype is not None:
            return tensor.dtype.name.lower()
    first = node.inputs[0] if node.inputs else None
    return "" if first is None or first.dtype is None else first.dtype.name.lower()
