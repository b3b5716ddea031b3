"""onnxruntime-web's WebAssembly, run by node: one process per model."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError
from quantry.graph.qdq import is_pair_node
from quantry.runtime.sessions import SessionModel, loadable
from quantry.targets.backends.backend import Arrays, Backend, PlacedNode, Runner
from quantry.targets.backends.ort_cpu import nodes_of, require

_SCRIPT = Path(__file__).with_name("run_model.cjs")
_PACKAGE = "onnxruntime-web"
_START_SECONDS = 60


class OrtWeb(Backend):
    """onnxruntime-web in node, with one thread of WebAssembly."""

    name = "ort-web"
    product = _PACKAGE
    licence = "MIT"
    install = "install node and run `npm install onnxruntime-web` in the current folder, or set NODE_PATH"
    device = "WebAssembly"

    def version(self) -> str | None:
        """Return the version that node finds; None if there is no node or no package."""
        node = shutil.which("node")
        if node is None:
            return None
        code = f"process.stdout.write(require('{_PACKAGE}/package.json').version)"
        # The package hides its package.json from `require` in some releases; its folder is found in any case.
        process = subprocess.run([node, "-e", code], capture_output=True, text=True, env=_environment(), check=False)  # noqa: S603
        if process.returncode == 0:
            return process.stdout.strip()
        for folder in _environment()["NODE_PATH"].split(os.pathsep):
            described = Path(folder) / _PACKAGE / "package.json"
            if described.is_file():
                return str(json.loads(described.read_text(encoding="utf-8"))["version"])
        return None

    def open(self, model: SessionModel, threads: int | None = None) -> Runner:
        """Start a process that has loaded the model."""
        require(self)
        return _NodeRunner(model)

    def placement(self, model: SessionModel, feeds: Arrays) -> tuple[PlacedNode, ...]:
        """Return that every node runs in WebAssembly; onnxruntime-web does not say with which kernel."""
        self.open(model).close()
        return tuple(
            PlacedNode(node.name or "", node.op_type, "wasm", node.name or "", "", self.device)
            for node in nodes_of(model)
            if not is_pair_node(node)
        )


def _environment() -> dict[str, str]:
    folders = [os.environ.get("NODE_PATH", ""), str(Path.cwd() / "node_modules")]
    return {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, folders))}


class _NodeRunner(Runner):
    def __init__(self, model: SessionModel) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quantry-")
        file = Path(self._folder.name) / "model.onnx"
        if isinstance(model, bytes):
            file.write_bytes(model)
        elif isinstance(model, str | Path):
            file = Path(model)
        else:
            with loadable(model) as written:
                source = written.source
                file.write_bytes(source if isinstance(source, bytes) else Path(source).read_bytes())
        node = shutil.which("node")
        assert node is not None
        self._process = subprocess.Popen(  # noqa: S603
            [node, str(_SCRIPT), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        header = self._header()
        if "error" in header:
            self.close()
            raise ModelError(f"onnxruntime-web must be able to load the model, got {header['error']}")

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run the model once."""
        return self._run(feeds)[0]

    def milliseconds(self, feeds: Arrays) -> float:
        """Run the model once and return the time inside of node, without the transfer."""
        return self._run(feeds)[1]

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait(_START_SECONDS)
        self._folder.cleanup()

    def _run(self, feeds: Arrays) -> tuple[dict[str, NDArray[Any]], float]:
        arrays = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        request: list[dict[str, Any]] = [
            {"name": name, "type": str(array.dtype), "dims": array.shape, "bytes": array.nbytes}
            for name, array in arrays.items()
        ]
        writer = _pipe(self._process.stdin)
        writer.write(json.dumps(request).encode() + b"\n")
        for array in arrays.values():
            writer.write(array.tobytes())
        writer.flush()
        header = self._header()
        if "error" in header:
            feeds_text = ", ".join(f"{entry['name']} {entry['type']}{list(entry['dims'])}" for entry in request)
            raise DataError(f"the model must be able to run on the inputs, got {feeds_text}; {header['error']}")
        reader = _pipe(self._process.stdout)
        outputs = {
            entry["name"]: np.frombuffer(reader.read(entry["bytes"]), entry["type"]).reshape(entry["dims"]).copy()
            for entry in header["outputs"]
        }
        return outputs, float(header["milliseconds"])

    def _header(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise ModelError("node must answer, but it ended; run the model with onnxruntime-web by hand to see why")
        header: dict[str, Any] = json.loads(line)
        return header


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
