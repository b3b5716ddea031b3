"""The one place that opens onnxruntime sessions.

`SessionOptions` describes a session, `open_session` opens it. There are four kinds:

=================  ====================================================================================================
simulation         `simulation_session`: computes exactly what the Q/DQ pairs of a quantized graph say
deployment         `deployment_session`: all of onnxruntime's optimizations, as a user would open it; the one to time
float segments     `SessionOptions.float_segment`: parts of the float model, run while the caller counts values
simulated parts    `SessionOptions.simulated_part`: short-lived parts of a quantized model
=================  ====================================================================================================
"""

import enum
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError, RecipeError, nearest_spelling
from quantry.graph.lone_layers import WEIGHT_ROUNDING_OPTIMIZER
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize, weight_bytes, write_model
from quantry.graph.segments import Segment
from quantry.numerics import kernels
from quantry.runtime.devices import GPU_PROVIDERS
from quantry.runtime.threads import thread_count

if TYPE_CHECKING:
    import onnxruntime

SessionModel = str | Path | bytes | ir.Model | QuantizedModel | Segment
"""What a session can be opened from: a path, the bytes of an ONNX file, a graph in memory, or a segment of one."""

Provider = tuple[str, Mapping[str, Any]]
"""The name of an execution provider and its options."""

CPU_PROVIDER = "CPUExecutionProvider"
CPU = (CPU_PROVIDER,)

# Each of these lets onnxruntime change the numbers of a quantized graph: fusing quantized operators, merging a Relu or
# Clip into the quantizer after it, quantizing weights and biases that the recipe left float, and merging two pairs with
# different scales into one (after a product with a constant 1 between them was removed). With them disabled, results
# are bit-equal to those of an unoptimized session (162 combinations of types), at nearly the speed of the float model.
_UNFAITHFUL_OPTIMIZERS = ("ReluQuantRewrite", "ClipQuantRewrite", WEIGHT_ROUNDING_OPTIMIZER, "DoubleQDQPairsRemover")
_KEEP_QDQ = ("session.disable_quant_qdq", "1")

_FLOAT8_TYPES = (onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E5M2)

# While onnxruntime copies a model from bytes, the weights are in memory twice. A file is mapped instead.
INLINE_LIMIT_BYTES = 256_000_000

# onnxruntime's severity "fatal": its errors are raised as exceptions, so nothing must be printed as well.
_ERRORS_ARE_RAISED = 4


class Spinning(enum.Enum):
    """Whether the threads of a session wait for work in a busy loop, which costs a core each.

    Attributes:
        ALWAYS: onnxruntime's default, the fastest for a session that is run back to back.
        DURING_RUNS: They stop when a run ends; otherwise they would take the cores from the session that is run next.
        NEVER: For sessions that run at the same time as other work.
    """

    ALWAYS = None  # not (): Python 3.11.0 to 3.11.3 replaces an empty tuple by an object
    DURING_RUNS = ("session.force_spinning_stop", "1")
    NEVER = ("session.intra_op.allow_spinning", "0")


class Arena(enum.Enum):
    """Where the CPU provider gets its memory.

    Attributes:
        OWN: The session has its own arena, onnxruntime's default.
        SHARED: One arena for all sessions of this process that ask for it: they run one after the other.
        NONE: The operating system's allocator. A short-lived session would only grow an arena and drop it.
    """

    OWN = enum.auto()
    SHARED = enum.auto()
    NONE = enum.auto()


@dataclass(frozen=True)
class PluginProvider:
    """An execution provider that comes in a library of its own.

    Attributes:
        name: Its name.
        library: Path of the library.
        options: Its options.
        cpu_fallback: Whether nodes that it does not take run on the CPU; otherwise they are an error.
    """

    name: str
    library: str
    options: Mapping[str, str]
    cpu_fallback: bool = False


@dataclass(frozen=True)
class SessionOptions:
    """How onnxruntime runs a model.

    Attributes:
        exact: Compute what the graph says: no fusion may change the numbers of a quantized model.
        providers: Execution providers by name, or by name and options; first choice first.
        threads: Threads inside one operator; None leaves the choice to onnxruntime.
        spinning: Whether idle threads wait in a busy loop.
        arena: Where memory comes from.
        memory_pattern: Whether onnxruntime plans one allocation for all activations of a run.
        plugin: A provider in a library of its own, used instead of ``providers``.
        profile: Folder for the profile and for the graph as onnxruntime has optimized it, ``optimized.onnx``.
        look_ups: Whether the model has the operator of `quantry.emit.look_ups`.
    """

    exact: bool = False
    providers: Sequence[str | Provider] = CPU
    threads: int | None = None
    spinning: Spinning = Spinning.ALWAYS
    arena: Arena = Arena.OWN
    memory_pattern: bool = True
    plugin: PluginProvider | None = None
    profile: Path | None = None
    look_ups: bool = False

    @classmethod
    def float_segment(cls, providers: Sequence[str]) -> "SessionOptions":
        """Return options for a segment of the float model while the caller counts the values of the previous one.

        Counting takes as long as inference, so inference gets half of the threads, and they must not spin. Segments
        share an arena; its blocks then fit no fixed memory pattern.
        """
        return cls(
            providers=providers,
            threads=max(1, thread_count() // 2),
            spinning=Spinning.NEVER,
            arena=Arena.SHARED,
            memory_pattern=False,
        )

    @classmethod
    def simulated_part(cls, provider: Provider, threads: int) -> "SessionOptions":
        """Return options for a part of a quantized model that is run over all samples once and then dropped."""
        return cls(
            exact=True,
            providers=(provider,),
            threads=threads,
            spinning=Spinning.DURING_RUNS,
            arena=Arena.NONE,
            memory_pattern=False,
        )


def simulation_session(
    model: SessionModel,
    providers: Sequence[str] = CPU,
    threads: int | None = None,
    *,
    interleaved: bool = False,
    look_ups: bool = False,
) -> "onnxruntime.InferenceSession":
    """Open a session that computes exactly what the quantized graph says, at nearly the speed of the float model.

    Args:
        model: The model.
        providers: Execution providers, first choice first.
        threads: Threads inside one operator; None leaves the choice to onnxruntime.
        interleaved: Other sessions run between the runs of this one.
        look_ups: Whether the model has the operator of `quantry.emit.look_ups`.

    Raises:
        ModelError: onnxruntime does not accept the model.
        RecipeError: A provider is not part of this onnxruntime.
    """
    spinning = _spinning(interleaved)
    return open_session(
        model,
        SessionOptions(exact=True, providers=providers, threads=threads, spinning=spinning, look_ups=look_ups),
    )


def deployment_session(
    model: SessionModel, providers: Sequence[str] = CPU, threads: int | None = None, *, interleaved: bool = False
) -> "onnxruntime.InferenceSession":
    """Open a session with all of onnxruntime's optimizations, as a user would: the fastest, and the one to time.

    Args:
        model: The model.
        providers: Execution providers, first choice first.
        threads: Threads inside one operator; None leaves the choice to onnxruntime.
        interleaved: Other sessions run between the runs of this one.

    Raises:
        ModelError: onnxruntime does not accept the model.
        RecipeError: A provider is not part of this onnxruntime.
    """
    return open_session(model, SessionOptions(providers=providers, threads=threads, spinning=_spinning(interleaved)))


def _spinning(interleaved: bool) -> Spinning:
    return Spinning.DURING_RUNS if interleaved else Spinning.ALWAYS


def open_session(model: SessionModel, options: SessionOptions) -> "onnxruntime.InferenceSession":
    """Open a session.

    Args:
        model: The model.
        options: How to run it.

    Raises:
        ModelError: onnxruntime does not accept the model.
        RecipeError: A provider is not part of this onnxruntime.
    """
    import onnxruntime

    if options.plugin is None:
        check_providers([provider if isinstance(provider, str) else provider[0] for provider in options.providers])
    arguments = {"disabled_optimizers": list(_UNFAITHFUL_OPTIMIZERS)} if options.exact else {}
    with _source(model) as source:
        try:
            return onnxruntime.InferenceSession(
                source,
                _onnxruntime_options(options),
                **_providers(options),
                **arguments,
            )
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            if not options.exact and _has_float8(source):
                return open_session(model, replace(options, exact=True))
            label = f"in {model}" if isinstance(model, str | Path) else "in a model in memory"
            raise ModelError(f"onnxruntime must be able to load the model, got {error}; {label}") from error


def _providers(options: SessionOptions) -> dict[str, Any]:
    if options.plugin is not None:
        return {}
    # Names alone are passed as they are: onnxruntime treats a pair with empty options as customized.
    return {"providers": [p if isinstance(p, str) else (p[0], dict(p[1])) for p in options.providers]}


def run_once(content: bytes, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    """Return the outputs of a small model, computed as written; None if onnxruntime cannot load or run it.

    Args:
        content: The bytes of an ONNX file.
        feeds: Input names to arrays.
    """
    import onnxruntime

    options = _onnxruntime_options(SessionOptions(threads=1, spinning=Spinning.NEVER, arena=Arena.NONE))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(content, options, providers=[CPU_PROVIDER])
        values = session.run(None, dict(feeds))
    except Exception:  # onnxruntime's exceptions share no base class below Exception
        return None
    return values if all(isinstance(value, np.ndarray) for value in values) else None


def load_error(model: bytes | Path, *, optimized: bool = False) -> Exception | None:
    """Return the exception with which onnxruntime refuses a model; None if it loads it.

    Args:
        model: The bytes of an ONNX file, or its path.
        optimized: Whether to apply all optimizations, as a user's session does.
    """
    import onnxruntime

    options = _onnxruntime_options(SessionOptions(threads=1, spinning=Spinning.NEVER, arena=Arena.NONE))
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=[CPU_PROVIDER]
        )
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        return load_error(model) if optimized and _has_float8(model) else error
    return None


def _has_float8(source: str | bytes | Path) -> bool:
    """Return whether a model has constants of 8-bit floats.

    onnxruntime's CPU provider (1.19 to 1.31) fuses pairs of 8-bit floats into integer kernels and then refuses the
    model (https://github.com/microsoft/onnxruntime/issues/22269); without these fusions it runs.
    """
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        model = onnx.load_model_from_string(content)
    except Exception:  # a missing file, or protobuf's exceptions; onnxruntime's message then says what is wrong
        return False
    return any(weight.data_type in _FLOAT8_TYPES for weight in model.graph.initializer)


def _onnxruntime_options(options: SessionOptions) -> "onnxruntime.SessionOptions":
    import onnxruntime

    result = onnxruntime.SessionOptions()
    result.log_severity_level = _ERRORS_ARE_RAISED
    result.enable_mem_pattern = options.memory_pattern
    result.enable_cpu_mem_arena = options.arena is not Arena.NONE
    if options.threads is not None:
        result.intra_op_num_threads = options.threads
    entries: list[tuple[str, str] | None] = [options.spinning.value, _KEEP_QDQ if options.exact else None]
    if options.arena is Arena.SHARED:
        _register_shared_arena()
        entries.append(("session.use_env_allocators", "1"))
    if options.plugin is not None:
        devices = _plugin_devices(options.plugin.name, options.plugin.library)
        result.add_provider_for_devices(devices, dict(options.plugin.options))
        entries.append(None if options.plugin.cpu_fallback else ("session.disable_cpu_ep_fallback", "1"))
    library = kernels.library_file() if options.look_ups else None
    if library is not None:
        result.register_custom_ops_library(str(library))
    if options.profile is not None:
        result.enable_profiling = True
        result.profile_file_prefix = str(options.profile / "profile")
        result.optimized_model_filepath = str(options.profile / "optimized.onnx")
    for entry in (entry for entry in entries if entry is not None):
        result.add_session_config_entry(*entry)
    return result


@cache  # onnxruntime allows one registration per process.
def _plugin_devices(name: str, library: str) -> list[Any]:
    import onnxruntime

    def devices() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]

    # The user's own program may have registered it.
    if not devices():
        onnxruntime.register_execution_provider_library(name, library)
    return devices()


@cache  # onnxruntime allows one registration per process.
def _register_shared_arena() -> None:
    import onnxruntime

    kinds = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kinds[0], 0, kinds[1])
    try:
        onnxruntime.create_and_register_allocator(info, None)
    except RuntimeError:
        # Another library in this process has registered an arena; sessions use that one.
        return


def available_providers() -> tuple[str, ...]:
    """Return the execution providers of the installed onnxruntime, best first."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def check_providers(providers: Sequence[str]) -> None:
    """Check that this onnxruntime has all of the given execution providers.

    Raises:
        RecipeError: One is missing, or none is given.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    # onnxruntime itself would warn and use the CPU.
    missing = [provider for provider in providers if provider not in available]
    if missing or not providers:
        unavailable = f"{missing[0]!r}{nearest_spelling(missing[0], available)}" if missing else "none"
        raise RecipeError(f"execution providers must be among {', '.join(available)}, got {unavailable}, in providers")


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
    for name in GPU_PROVIDERS[kind]:
        if name in available:
            return name, {"device_id": int(number.split(",")[0])}
    raise RecipeError(
        f"onnxruntime must have an execution provider for the device, got {device!r} with {', '.join(available)}, "
        "in inference_device"
    )


def run_session(session: "onnxruntime.InferenceSession", feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run a session once.

    Args:
        session: The session.
        feeds: Input names to arrays.

    Returns:
        Output names to arrays, in the model's order.

    Raises:
        DataError: onnxruntime does not accept the arrays, or fails on them.
        ModelError: An output is a sequence or a map instead of a tensor.
    """
    names = [output.name for output in session.get_outputs()]
    try:
        values = session.run(names, dict(feeds))
    except Exception as error:
        inputs = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        raise DataError(f"the model must be able to run on the inputs, got {inputs}; onnxruntime: {error}") from error
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, np.ndarray):
            raise ModelError(f"every output must be a tensor, got a {type(value).__name__}; output {name!r}")
    return dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class LoadableModel:
    """A model in a form that onnxruntime loads.

    Attributes:
        source: The bytes of the model, or the path of its file.
        size: Bytes of the model with its weights, on disk.
    """

    source: str | bytes
    size: int


@contextmanager
def loadable(model: ir.Model | QuantizedModel | Segment, inline_limit: int | None = None) -> Iterator[LoadableModel]:
    """Serialize a model to bytes, or to a temporary file if it is large.

    The file is deleted at the end of the block. Sessions outlive it: onnxruntime has read or mapped the weights when
    the session exists.

    Args:
        model: The model; it is not changed.
        inline_limit: Models with more bytes of weights than this become a file; `INLINE_LIMIT_BYTES` by default.
    """
    if _size_of_weights(model) <= (INLINE_LIMIT_BYTES if inline_limit is None else inline_limit):
        content = _serialized(model)
        yield LoadableModel(content, len(content))
        return
    graph = model if isinstance(model, ir.Model) else model.extracted() if isinstance(model, Segment) else model.model
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        files = write_model(graph, Path(folder) / "model.onnx", external_data_threshold=0)
        yield LoadableModel(str(files[0]), sum(file.stat().st_size for file in files))


@contextmanager
def _source(model: SessionModel) -> Iterator[str | bytes]:
    if isinstance(model, str | bytes | Path):
        yield str(model) if isinstance(model, Path) else model
    else:
        with loadable(model) as written:
            yield written.source


def _size_of_weights(model: ir.Model | QuantizedModel | Segment) -> int:
    if isinstance(model, Segment):
        return sum(tensor.nbytes for tensor in model.weights)
    if isinstance(model, QuantizedModel):
        return weight_bytes(model.model) if model.parts is None else model.parts.weight_bytes
    return weight_bytes(model)


def _serialized(model: ir.Model | QuantizedModel | Segment) -> bytes:
    if isinstance(model, ir.Model):
        return serialize(model)
    if isinstance(model, QuantizedModel):
        # The bytes of its file, if they are known already.
        return model.to_bytes() if model.parts is not None else serialize(model.model)
    if any(isinstance(tensor, ir.ExternalTensor) for tensor in model.weights):
        return serialize(model.extracted())
    # Without external weights the view is written as it is, which saves copying the nodes.
    proto = ir.serde.serialize_model(
        ir.Model(
            model.view,  # type: ignore[arg-type]  # writing needs nothing that a view lacks
            ir_version=model.whole.ir_version,
            functions=tuple(model.whole.functions.values()),
        )
    )
    return bytes(proto.SerializeToString())
