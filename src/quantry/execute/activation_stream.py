"""Runs a graph part by part on all samples, and keeps in memory or on disk what one part passes to the next.

Tuning needs the input of one layer for all samples, then continues with new weights. So each part of the graph runs on
all samples before the next part starts, and every node runs once however many layers are tuned.
"""

import logging
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from importlib import util
from typing import IO, TYPE_CHECKING, Any, Union

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.errors import DataError, StoreError
from quantry.graph.segments import Segment, segment_of, values_used
from quantry.recipe import LayerTuning
from quantry.runtime.sessions import CPU_PROVIDER, Provider, SessionOptions, open_session, provider_of
from quantry.runtime.threads import in_threads, thread_count

if TYPE_CHECKING:
    from quantry.execute.torch_stream import TorchStream

_LOG = logging.getLogger("quantry.tune")

MEMORY_BYTES = 64_000_000
"""Memory of one store before it uses the disk; the float and the quantized model have one store each."""

# By the recipe's memory level: no limit, a limit, or everything on disk.
_BUDGETS = {0: None, 1: MEMORY_BYTES, 2: 0}

Array = npt.NDArray[Any]


class ActivationStore:
    """Arrays by tensor name and sample; several threads may put and get at once.

    Args:
        level: 0 keeps all in memory, 1 uses the disk above `MEMORY_BYTES`, 2 keeps all on disk.
        directory: Folder of the files; None is the system's temporary folder. The files have no name there and
            disappear with the process.
    """

    def __init__(self, level: int, directory: str | None) -> None:
        self._budget = _BUDGETS[level]
        self._directory = directory
        self._held = 0
        self._arrays: dict[str, dict[int, Array | _Place]] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def in_memory(self) -> bool:
        """Whether any array is kept in memory."""
        return self._budget != 0

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._arrays))

    def put(self, name: str, sample: int, array: Array) -> None:
        """Store an array."""
        with self._lock:
            entries = self._arrays.setdefault(name, {})
            if self._budget is None or self._held + array.nbytes <= self._budget:
                self._held += array.nbytes
                entries[sample] = array
            else:
                entries[sample] = self._write(name, array)

    def get(self, name: str, sample: int) -> Array:
        """Return an array that was put. It may be the same object, so callers must not modify it."""
        entry = self._arrays[name][sample]
        if not isinstance(entry, _Place):
            return entry
        with self._lock:
            file = self._files[name]
            file.seek(entry.offset)
            read = file.read(entry.nbytes)
        return np.frombuffer(read, entry.dtype).reshape(entry.shape)

    def drop(self, name: str) -> None:
        """Forget a tensor."""
        for entry in self._arrays.pop(name, {}).values():
            if not isinstance(entry, _Place):
                self._held -= entry.nbytes
        file = self._files.pop(name, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Forget everything."""
        for name in tuple(self._arrays):
            self.drop(name)

    def _write(self, name: str, array: Array) -> "_Place":
        try:
            if name not in self._files:
                self._files[name] = tempfile.TemporaryFile(prefix="quantry-", dir=self._directory)  # noqa: SIM115
            file = self._files[name]
            location = _Place(file.seek(0, 2), array)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise StoreError(
                f"the folder for activations must exist and have room, got {error}; tensor {name!r}; set TMPDIR or "
                "cache_directory to a larger disk, or use fewer samples"
            ) from error
        return location


class _Place:
    """Position of an array in its file."""

    def __init__(self, offset: int, array: Array) -> None:
        self.offset, self.nbytes, self.dtype, self.shape = offset, array.nbytes, array.dtype, array.shape


_MOST_AT_ONCE = 8
"""Upper bound of samples that run at the same time, because each needs memory."""


class ActivationStream:
    """A graph whose nodes run once per sample, in order; constants of later nodes may still change.

    Only tensors that later nodes read are kept.

    Args:
        model: The graph.
        data: Samples.
        provider: Where to run.
        store: Keeps what is passed on; the stream owns it.

    Attributes:
        device: None, because tensors are NumPy arrays.
    """

    device = None

    def __init__(self, model: ir.Model, data: CalibrationData, provider: Provider, store: ActivationStore) -> None:
        self.model = model
        self._provider = provider
        self._store = store
        self._nodes = list(model.graph)
        self._position = 0
        self._repeated: list[ir.Node] = []
        self._last_use = {value: at for at, node in enumerate(self._nodes) for value in values_used(node)}
        self.samples = 0
        for sample in data:
            for name, array in sample.items():
                store.put(name, self.samples, array.copy())
            self.samples += 1

    def position_of(self, node: str) -> int:
        """Return the position of a node in the order of the graph."""
        return next(at for at, entry in enumerate(self._nodes) if entry.name == node)

    def advance(self, end: int, show: Collection[str] = ()) -> None:
        """Run all nodes before a position that have not run yet.

        Args:
            end: The position.
            show: Names of tensors to keep until the next call even if no node reads them.
        """
        nodes = [*self._repeated, *self._nodes[self._position : end]]
        later = frozenset(value for value, use in self._last_use.items() if use >= end)
        self._repeated, later = _without_bfloat16(nodes, later)
        if nodes:
            segment = segment_of(self.model, nodes, frozenset(show), later)
            names = [value.name or "" for value in segment.view.outputs]
            if names:
                self._run(segment, names)
        self._position = max(end, self._position)
        needed = {value.name for value in later} | set(show)
        for name in self._store:
            if name not in needed:
                self._store.drop(name)

    def _run(self, segment: Segment, names: list[str]) -> None:
        """Run a part on all samples, several at once: small parts do not keep more than one thread busy."""
        at_once = min(thread_count(), _MOST_AT_ONCE, self.samples) if self._provider[0] == CPU_PROVIDER else 1
        threads = max(1, thread_count() // max(1, at_once))
        session = open_session(segment, SessionOptions.simulated_part(self._provider, threads))

        def run(first: int) -> None:
            for sample in range(first, self.samples, at_once):
                feeds = {name: self._store.get(name, sample) for name in segment.inputs}
                for name, array in zip(names, _run(session, names, feeds, sample), strict=True):
                    self._store.put(name, sample, array)

        in_threads(run, range(at_once))

    def get(self, name: str, sample: int) -> npt.NDArray[Any]:
        """Return a tensor that is still kept; bfloat16 as the same values in float32."""
        for node in self._repeated:
            if node.outputs[0].name == name and node.op_type == "Cast" and node.inputs[0] is not None:
                source = self.get(node.inputs[0].name or "", sample)
                return np.asarray(source.astype(ml_dtypes.bfloat16), np.float32)
        return self._store.get(name, sample)

    def size(self, name: str) -> int:
        """Return the number of elements of a tensor for the first sample."""
        return self.get(name, 0).size

    def close(self) -> None:
        """Drop everything that is kept."""
        self._store.close()


def _without_bfloat16(nodes: list[ir.Node], later: frozenset[ir.Value]) -> tuple[list[ir.Node], frozenset[ir.Value]]:
    """Return nodes to run again with the next part, and what must be kept for them and for it.

    onnxruntime returns no bfloat16 to NumPy, so conversions to it are repeated from their float inputs.
    """
    repeated: list[ir.Node] = []
    for node in reversed(nodes):
        if any(value in later and _is_bfloat16(value) for value in node.outputs):
            repeated.insert(0, node)
            later = (later - frozenset(node.outputs)) | frozenset(
                value for value in values_used(node) if not value.is_initializer()
            )
    return repeated, later


def _is_bfloat16(value: ir.Value) -> bool:
    node = value.producer()
    if node is not None and node.op_type == "Cast":
        return "to" in node.attributes and node.attributes["to"].as_int() == ir.DataType.BFLOAT16.value
    return value.dtype is ir.DataType.BFLOAT16


def _run(session: Any, names: list[str], feeds: dict[str, npt.NDArray[Any]], sample: int) -> list[npt.NDArray[Any]]:
    try:
        return list(session.run(names, feeds))
    except Exception as error:
        # onnxruntime's exceptions share no base class below Exception.
        raise DataError(f"onnxruntime must be able to run the model, got {error}; sample {sample}, in tune") from error


AnyStream = Union[ActivationStream, "TorchStream"]


def open_streams(models: Sequence[ir.Model], data: CalibrationData, options: LayerTuning) -> list[AnyStream]:
    """Return a stream for each model.

    Args:
        models: The graphs; the first one decides whether samples can be joined into batches.
        data: Samples.
        options: Where to compute and where activations are kept.

    Raises:
        RecipeError: Neither torch nor onnxruntime can use the requested device.
    """
    stores = [ActivationStore(options.memory, options.cache_directory) for _ in models]
    device = gpu_of(options.inference_device, models)
    if device is None:
        provider = provider_of(options.inference_device)
        return [ActivationStream(model, data, provider, store) for model, store in zip(models, stores, strict=True)]
    from quantry.execute.torch_stream import TensorSamples, TorchStream

    samples = TensorSamples(data, models[0], device)
    return [TorchStream(model, samples, store) for model, store in zip(models, stores, strict=True)]


def gpu_of(device: str, models: Sequence[ir.Model]) -> str | None:
    """Return torch's name of a GPU if torch can run all models on it, otherwise None.

    Args:
        device: ``cpu``, ``cuda:N`` or ``hip:N``.
        models: The graphs.
    """
    if device == "cpu" or util.find_spec("torch") is None:
        return None
    import torch

    from quantry.execute.torch_stream import reason_against
    from quantry.execute.trainable_graph import torch_device

    if not torch.cuda.is_available():
        return None
    reasons = [reason for reason in map(reason_against, models) if reason is not None]
    if reasons:
        _LOG.info("tune: onnxruntime computes activations on %s, not torch: %s", device, reasons[0])
        return None
    return torch_device(device)
