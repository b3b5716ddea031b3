"""Puts a graph in memory into a form that onnxruntime loads.

onnxruntime sessions: one that computes what the model says, and one as a user would open it.

Limits what onnxruntime takes of the machine in a process that shares it with others like it.

Opens onnxruntime sessions for the float pass.

Opens onnxruntime sessions for parts of a float or simulated model.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError, RecipeError, nearest_spelling
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize, weight_bytes, write_model
from quantry.graph.segments import Segment

# Bytes are held twice while a session is made from them; a file is mapped.
_INLINE_LIMIT_BYTES = 500_000_000


@dataclass(frozen=True)
class Portable:
    """A model that sessions can be opened from.

    Attributes:
        source: The bytes of the model, or the path of its file.
        size: Bytes of the model with its weights, on disk.
    """

    source: str | bytes
    size: int


@contextmanager
def portable(model: ir.Model, inline_limit: int = _INLINE_LIMIT_BYTES) -> Iterator[Portable]:
    """Give the bytes of a model, or the path of a temporary file where it is too large for that.

    Sessions outlive the file: onnxruntime has read or mapped the weights when the session exists.

    Args:
        model: The graph; it is left as it was.
        inline_limit: Weights of more bytes than this in total go to a file.
    """
    if weight_bytes(model) <= inline_limit:
        content = serialize(model)
        yield Portable(content, len(content))
        return
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        files = write_model(model, Path(folder) / "model.onnx", external_data_threshold=inline_limit)
        yield Portable(str(files[0]), sum(file.stat().st_size for file in files))


def portable_result(quantized: QuantizedModel) -> AbstractContextManager[Portable]:
    """Give a quantized model as `portable` gives a graph, from the bytes of its file where these are known."""
    if quantized.parts is None or quantized.parts.weight_bytes > _INLINE_LIMIT_BYTES:
        return portable(quantized.model)
    content = quantized.to_bytes()
    return nullcontext(Portable(content, len(content)))


if TYPE_CHECKING:
    import onnxruntime

ModelLike = str | Path | bytes | ir.Model
"""A path, the bytes of an ONNX file, or a graph in memory."""

CPU = ("CPUExecutionProvider",)

# Measured on 162 combinations of types: with these off, results are bit-equal to those without any optimisation, at
# nearly the speed of the float model. Fusing quantized operators, dropping a Relu or Clip into the quantizer behind it
# and quantizing weights and biases that we left float all change numbers.
_UNFAITHFUL_OPTIMIZERS = ("ReluQuantRewrite", "ClipQuantRewrite", "WeightBiasQuantization")
_KEEP_QDQ = {"session.disable_quant_qdq": "1"}

# Worker threads of a session spin for a while after a run, and take the cores from the session that is run next.
_STOP_SPINNING = {"session.force_spinning_stop": "1"}

_ERRORS_ARE_RAISED = 4


def simulation_session(
    model: ModelLike, providers: Sequence[str] = CPU, threads: int | None = None, *, in_turn: bool = False
) -> "onnxruntime.InferenceSession":
    """Open a session that computes exactly what the quantized graph says, at nearly the speed of the float model.

    Args:
        model: The model.
        providers: Execution providers, first choice first.
        threads: Threads inside one operator; None leaves the choice to onnxruntime.
        in_turn: Other sessions are run between the runs of this one.

    Raises:
        ModelError: onnxruntime does not accept the model.
        RecipeError: A provider is not part of this onnxruntime.
    """
    config = _KEEP_QDQ | (_STOP_SPINNING if in_turn else {})
    return _open(model, providers, threads, config, disabled_optimizers=list(_UNFAITHFUL_OPTIMIZERS))


def deployment_session(
    model: ModelLike, providers: Sequence[str] = CPU, threads: int | None = None, *, in_turn: bool = False
) -> "onnxruntime.InferenceSession":
    """Open a session with all of onnxruntime's optimisations, as a user would: the fastest, and the one to time.

    Args:
        model: The model.
        providers: Execution providers, first choice first.
        threads: Threads inside one operator; None leaves the choice to onnxruntime.
        in_turn: Other sessions are run between the runs of this one.

    Raises:
        ModelError: onnxruntime does not accept the model.
        RecipeError: A provider is not part of this onnxruntime.
    """
    return _open(model, providers, threads, _STOP_SPINNING if in_turn else {})


def run_session(session: "onnxruntime.InferenceSession", feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run a session once.

    Args:
        session: The session.
        feeds: Input names to arrays.

    Returns:
        Output names to arrays, in the model's order.

    Raises:
        DataError: onnxruntime does not accept the arrays, or fails on them.
        ModelError: An output is no tensor but a sequence or a map.
    """
    names = [output.name for output in session.get_outputs()]
    try:
        values = session.run(names, dict(feeds))
    except Exception as error:
        given = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        raise DataError(
            f"the inputs must be ones that the model can run on; got {given}; onnxruntime: {error}"
        ) from error
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, np.ndarray):
            raise ModelError(
                f"every output must be a tensor to be compared; got a {type(value).__name__}; output {name!r}"
            )
    return dict(zip(names, values, strict=True))


def _open(
    model: ModelLike, providers: Sequence[str], threads: int | None, config: Mapping[str, str], **arguments: Any
) -> "onnxruntime.InferenceSession":
    import onnxruntime

    _check_providers(providers, onnxruntime.get_available_providers())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ARE_RAISED
    if threads is not None:
        options.intra_op_num_threads = threads
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    with portable(model) if isinstance(model, ir.Model) else nullcontext() as written:
        source = model if written is None else written.source
        try:
            return onnxruntime.InferenceSession(
                source if isinstance(source, bytes) else str(source), options, providers=list(providers), **arguments
            )
        except Exception as error:
            where = f"in {model}" if isinstance(model, str | Path) else "in-memory model"
            raise ModelError(f"the model must be one that onnxruntime can load; it said {error}; {where}") from error


def _check_providers(providers: Sequence[str], known: Sequence[str]) -> None:
    for provider in providers:
        # onnxruntime itself would warn and go on with the CPU.
        if provider not in known:
            raise RecipeError(
                f"an execution provider must be one of {', '.join(known)}; "
                f"got {provider!r}{nearest_spelling(provider, known)} in providers"
            )


_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Give every session that this process opens from now on so many threads, none of which spins while it waits.

    Sessions whose options name a number of threads keep it. It holds for sessions of a user's evaluator too, and for
    torch. Meant for worker processes: on two cores, two workers with two threads each take longer than with one.

    Args:
        threads: Threads inside one operator.
    """
    import onnxruntime

    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    opened = onnxruntime.InferenceSession.__init__

    def open_limited(self: Any, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        if options.intra_op_num_threads == 0:
            options.intra_op_num_threads = threads
        _set_once(options, "session.intra_op.allow_spinning", "0")
        opened(self, path_or_bytes, options, *args, **kwargs)

    onnxruntime.InferenceSession.__init__ = open_limited
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _set_once(options: Any, key: str, value: str) -> None:
    """Set an entry that the caller did not set; onnxruntime warns of setting one twice, and has no way to ask first."""
    try:
        options.get_session_config_entry(key)
    except Exception:  # onnxruntime's exceptions share no base class below it
        options.add_session_config_entry(key, value)


if TYPE_CHECKING:
    from onnxruntime import InferenceSession

INLINE_LIMIT_BYTES = 256_000_000
"""Models with more weight than this pass through a temporary file, which onnxruntime maps instead of copying."""


def open_session(segment: Segment, providers: Sequence[str]) -> "InferenceSession":
    """Return a session for a segment of the float model.

    Args:
        segment: The segment.
        providers: Execution providers, first choice first.

    Raises:
        ModelError: If onnxruntime cannot load the model.
    """
    import onnxruntime

    share_arena()
    options = onnxruntime.SessionOptions()
    # Segments run one after the other, so they can share one arena; its blocks then fit no fixed pattern.
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    # Counting takes as long as inference does and runs beside it, so inference gets half of the machine, and threads
    # that do not spin while they wait.
    options.intra_op_num_threads = max(1, _available_cores() // 2)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # What onnxruntime has to say is in its exceptions.
    options.log_severity_level = 4
    try:
        if sum(tensor.nbytes for tensor in segment.weights) <= INLINE_LIMIT_BYTES:
            return onnxruntime.InferenceSession(encoded(segment), options, providers=list(providers))
        with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(segment.extracted(), path, external_data_threshold=0)
            return onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except ModelError:
        raise
    except Exception as error:
        # onnxruntime's exceptions share no base class below Exception.
        raise ModelError(f"onnxruntime must be able to load the float model, got {error}; observe") from error


def check_providers(providers: Sequence[str]) -> None:
    """Make sure that onnxruntime has all execution providers named.

    Raises:
        ModelError: If it lacks one.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    missing = [provider for provider in providers if provider not in available]
    if missing or not providers:
        given = repr(missing[0]) if missing else "none"
        raise ModelError(f"execution providers must be among {available}, got {given}; ObserveOptions.providers")


@cache
def share_arena() -> None:
    """Register one memory arena for all sessions of this process that ask for it."""
    import onnxruntime

    kinds = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kinds[0], 0, kinds[1])
    try:
        onnxruntime.create_and_register_allocator(info, None)
    except RuntimeError:
        # Another library of this process has registered one already, which serves as well.
        return


def _available_cores() -> int:
    # Not everywhere can a process be tied to some of the cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoded(segment: Segment) -> bytes:
    """Return a segment as ONNX bytes with all weights inline."""
    if any(isinstance(tensor, ir.ExternalTensor) for tensor in segment.weights):
        return serialize(segment.extracted())
    # Weights that are in memory already need none of that care, and a view can be written without extracting it.
    proto = ir.serde.serialize_model(
        ir.Model(
            segment.view,  # type: ignore[arg-type]  # writing needs nothing that a view lacks
            ir_version=segment.whole.ir_version,
            functions=tuple(segment.whole.functions.values()),
        )
    )
    return bytes(proto.SerializeToString())


if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# With these off, a simulated model computes exactly what its pairs say; see quantry.runtime.sessions.
_EXECUTION_UNFAITHFUL_OPTIMIZERS = ["ReluQuantRewrite", "ClipQuantRewrite", "WeightBiasQuantization"]

_PROVIDERS = {"cuda": ("CUDAExecutionProvider",), "hip": ("ROCMExecutionProvider", "MIGraphXExecutionProvider")}

CPU_PROVIDER = "CPUExecutionProvider"

Provider = tuple[str, Mapping[str, Any]]


def provider_of(device: str) -> Provider:
    """Return the execution provider of a device.

    Args:
        device: ``cpu``, ``cuda:N`` or ``hip:N``.

    Raises:
        RecipeError: This onnxruntime has none for it.
    """
    import onnxruntime

    kind, _, number = device.partition(":")
    if kind == "cpu":
        return CPU_PROVIDER, {}
    available = onnxruntime.get_available_providers()
    for name in _PROVIDERS[kind]:
        if name in available:
            return name, {"device_id": int(number.split(",")[0])}
    raise RecipeError(
        f"the device to compute activations on must be one that onnxruntime has a provider for, got {device!r} with "
        f"{available}; inference_device"
    )


def open_part(segment: Segment, provider: Provider, *, threads: int) -> "InferenceSession":
    """Return a session that computes exactly what a part of a model says.

    Args:
        segment: The part.
        provider: Where it runs.
        threads: How many threads compute one sample.

    Raises:
        ModelError: onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Sessions take turns: threads that spin after a run would take the cores from the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    # A session serves for a moment; an arena of its own would only grow.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            encoded(segment),
            options,
            providers=[(provider[0], dict(provider[1]))],
            disabled_optimizers=_EXECUTION_UNFAITHFUL_OPTIMIZERS,
        )
    except Exception as error:
        raise ModelError(f"onnxruntime must be able to load the model, got {error}; in tune") from error
