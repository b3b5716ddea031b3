"""onnxruntime's CPU provider: what it fused, which kernels ran, and how long they took."""

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import MissingExtraError
from quantry.graph.load import read_model
from quantry.graph.passes.tidy import name_nodes
from quantry.graph.qdq import is_dequantize, is_pair_node, is_pair_operator, is_quantize, quantizers_of, read_through
from quantry.runtime.sessions import (
    SessionModel,
    SessionOptions,
    deployment_session,
    loadable,
    open_session,
    run_session,
)
from quantry.targets.backends.backend import Arrays, Backend, PlacedNode, Runner

# onnxruntime renames nodes that it fuses or moves to another layout.
_RENAMED = re.compile(r"^fused |(_token_\d+|_nchwc|_nhwc|_new_reshape|/\w+Fusion/?)+$")
_INTEGERS = ("int8", "uint8", "int16", "uint16")
_TIMED_RUNS = 3


class SessionRunner(Runner):
    """A session of onnxruntime."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run the session once."""
        return run_session(self._session, feeds)


class OrtCpu(Backend):
    """onnxruntime's CPU provider with all of its optimizations."""

    name = "ort-cpu"
    product = "onnxruntime"
    licence = "MIT"
    install = "pip install onnxruntime"
    device = "CPU"
    evaluates = True

    def version(self) -> str | None:
        """Return the version of onnxruntime."""
        return installed_version("onnxruntime")

    def open(self, model: SessionModel, threads: int | None = None) -> Runner:
        """Open a session as a user would."""
        return SessionRunner(deployment_session(model, threads=threads, interleaved=True))

    def placement(self, model: SessionModel, feeds: Arrays) -> tuple[PlacedNode, ...]:
        """Return the kernels of onnxruntime's optimized graph, with the times of its profile."""
        # One thread, as for latency: with several, other load on the machine decides.
        kernels = profiled_kernels(model, feeds, SessionOptions(threads=1))
        return placed(nodes_of(model), kernels, self.device)


@dataclass(frozen=True)
class Kernel:
    """One node of the graph that a runtime executes.

    Attributes:
        name: Its name in the optimized graph.
        operator: Its operator type.
        precision: Type of its first integer input, else of its first input.
        provider: The execution provider.
        milliseconds: Time of one run.
        outputs: Names of the tensors that it writes, if it computes a part of an operator.
    """

    name: str
    operator: str
    precision: str
    provider: str
    milliseconds: float
    outputs: tuple[str, ...] = ()


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def require(backend: Backend) -> None:
    """Check that a backend is installed.

    Raises:
        MissingExtraError: It is not.
    """
    if backend.version() is None:
        raise MissingExtraError(
            f"the target's backend must be installed, found no {backend.product}; {backend.install} "
            f"(licence: {backend.licence})"
        )


def nodes_of(model: SessionModel) -> list[ir.Node]:
    """Return the nodes of a model, each with a name."""
    if isinstance(model, ir.Model):
        return list(model.graph)
    if isinstance(model, str | bytes | Path):
        loaded = read_model(model if isinstance(model, bytes) else Path(model).read_bytes())
    else:
        with loadable(model) as written:
            source = written.source
            loaded = read_model(source if isinstance(source, bytes) else Path(source).read_bytes())
    name_nodes(loaded)
    return list(loaded.graph)


def profiled_kernels(model: SessionModel, feeds: Arrays, options: SessionOptions) -> list[Kernel]:
    """Run a model with onnxruntime's profiler and return the kernels that ran, in order.

    Args:
        model: The model.
        feeds: One sample.
        options: How to run it.
    """
    from dataclasses import replace

    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        session = open_session(model, replace(options, profile=Path(folder)))
        for _ in range(_TIMED_RUNS):
            run_session(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        optimized = Path(folder) / "optimized.onnx"
        nodes = onnx.load(optimized, load_external_data=False).graph.node if optimized.exists() else ()
    times: dict[str, list[float]] = {}
    arguments_of: dict[str, Mapping[str, Any]] = {}
    for event in events:
        name = str(event.get("name", "")).removesuffix("_kernel_time")
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault(name, []).append(event["dur"] / 1000)
            arguments_of[name] = event["args"]
    written = _outputs_of_parts(nodes, {name: str(arguments["op_name"]) for name, arguments in arguments_of.items()})
    return [
        Kernel(
            name,
            arguments["op_name"],
            _precision(arguments["input_type_shape"]),
            arguments["provider"],
            min(times[name]),
            written.get(name, ()),
        )
        for name, arguments in arguments_of.items()
    ]


def _outputs_of_parts(nodes: Iterable[onnx.NodeProto], kernels: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the outputs of kernels that compute a part of an operator which onnxruntime has no kernel for.

    Such nodes have no name in the optimized graph; the profile names them by operator and number, in the same order.
    """
    nodes = list(nodes)
    node_names = {node.name for node in nodes if node.name}
    unnamed = {name: operator for name, operator in kernels.items() if name not in node_names}
    outputs: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        name = next((name for name, operator in unnamed.items() if operator == node.op_type), None)
        if node.name or name is None:
            continue
        del unnamed[name]
        # Transpose and the parts of pairs are not what an operator consists of: onnxruntime inserts them around it.
        if node.op_type != "Transpose" and not is_pair_operator(node.op_type):
            outputs[name] = tuple(node.output)
    return outputs


def _precision(inputs: Iterable[Mapping[str, Any]]) -> str:
    types = [next(iter(entry)) for entry in inputs]
    return next((dtype for dtype in types if dtype in _INTEGERS), types[0] if types else "")


class _Placer:
    """Finds the kernel of each node: its own, or the one that it was fused into."""

    def __init__(self, nodes: list[ir.Node], kernels: list[Kernel]) -> None:
        self._nodes = nodes
        self._kernels = {_RENAMED.sub("", kernel.name): kernel for kernel in kernels}
        self._kernels |= {kernel.name: kernel for kernel in kernels}
        self._writers = {name: kernel for kernel in kernels for name in kernel.outputs}

    @cached_property
    def found(self) -> dict[str, Kernel]:
        """By node name, the kernel that computes it."""
        found = {node.name or "": kernel for node in self._nodes if (kernel := self._named(node)) is not None}
        # Forwards: a function after an operator is fused into it. Backwards: what feeds one node only is fused into it.
        for node in self._nodes:
            source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
            if node.name not in found and source is not None and not is_dequantize(source) and not is_dequantize(node):
                fused = found.get(source.name or "")
                if fused is not None and len(node.inputs[0].uses()) == 1:  # type: ignore[union-attr]
                    found[node.name or ""] = fused
        for node in reversed(self._nodes):
            readers = [use.node for output in node.outputs for use in output.uses()]
            if node.name not in found and len(readers) == 1 and (readers[0].name or "") in found:
                found[node.name or ""] = found[readers[0].name or ""]
        return found

    @cached_property
    def owners(self) -> dict[str, str]:
        """By the name of each kernel, the name of the node that its time belongs to."""
        fused: dict[str, list[ir.Node]] = {}
        for node in self._nodes:
            kernel = self.found.get(node.name or "")
            if kernel is not None:
                fused.setdefault(kernel.name, []).append(node)
        return {name: self._owner(self._kernels[name], nodes) for name, nodes in fused.items()}

    @staticmethod
    def _owner(kernel: Kernel, nodes: list[ir.Node]) -> str:
        names = (kernel.name, _RENAMED.sub("", kernel.name))
        candidates = [node for node in nodes if node.name in names] or [
            node for node in nodes if kernel.operator.endswith(node.op_type)
        ]
        return (candidates or nodes)[0].name or ""

    def _named(self, node: ir.Node) -> Kernel | None:
        """Return the kernel with the node's name, or its output's: the NCHWc layout names kernels so.

        A kernel that a function was fused into has the name of the function's output.
        """
        kernel = self._kernels.get(node.name or "")
        if kernel is not None or not node.outputs:
            return kernel
        kernel = self._kernels.get(node.outputs[0].name or "")
        if kernel is None:
            # onnxruntime has no kernel for some operators, such as HardSwish, and runs the nodes they consist of.
            return self._writers.get(node.outputs[0].name or "")
        return kernel if kernel.operator == node.op_type or kernel.name.endswith("_nchwc") else None


def placed(nodes: list[ir.Node], kernels: list[Kernel], device: str) -> tuple[PlacedNode, ...]:
    """Return what became of every node.

    Args:
        nodes: The nodes of the model.
        kernels: The kernels that ran.
        device: Name of the device of these kernels.
    """
    placer = _Placer(nodes, kernels)
    table = []
    for node in nodes:
        kernel = placer.found.get(node.name or "")
        owner = "" if kernel is None else placer.owners[kernel.name]
        if is_pair_node(node) and owner != node.name:
            continue
        table.append(_entry(node, kernel, owner, device))
    return tuple(table)


def _entry(node: ir.Node, kernel: Kernel | None, owner: str, device: str) -> PlacedNode:
    if kernel is None:
        return PlacedNode(node.name or "", node.op_type, "", "", "", "", why="removed by the optimizer")
    return PlacedNode(
        node=node.name or "",
        operator=node.op_type,
        kernel=kernel.operator,
        unit=owner,
        precision=kernel.precision,
        device=device,
        milliseconds=kernel.milliseconds if owner == node.name else None,
        why=_float_reason(node, kernel),
    )


def _float_reason(node: ir.Node, kernel: Kernel) -> str:
    """Return why a node that reads quantized tensors runs in float; empty if it does not."""
    tensors = [tensor for value in node.inputs if (tensor := read_through(value)) is not None]
    if kernel.precision in _INTEGERS or not tensors:
        return ""
    types = {tensor.dtype.name.lower() for tensor in tensors if tensor.dtype is not None} - {"int32"}
    if not quantizers_of(node.outputs[0]):
        readers = (use.node for use in node.outputs[0].uses())
        after = ", ".join(dict.fromkeys(reader.op_type for reader in readers if not is_quantize(reader)))
        return f"its result is not quantized at once: {after or 'it is an output'} reads it in float"
    return f"onnxruntime has no integer kernel for {node.op_type} with {' and '.join(sorted(types)) or 'these types'}"
