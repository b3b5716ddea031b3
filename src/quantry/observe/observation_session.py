"""Opens onnxruntime sessions for the float pass."""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from quantry.errors import ModelError
from quantry.observe.segments import Segment
from quantry.prepare import serialize, write_model

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
