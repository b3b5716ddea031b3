"""An onnxruntime session of the float model that shows chosen tensors."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from quantry.errors import ModelError
from quantry.prepare import serialize, write_model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

INLINE_LIMIT_BYTES = 256_000_000
"""Models with more weight than this pass through a temporary file, which onnxruntime maps instead of copying."""


def open_session(model: ir.Model, outputs: Sequence[str], providers: Sequence[str]) -> "InferenceSession":
    """Return a session whose outputs are the tensors named.

    Args:
        model: The float model; it is left as it was.
        outputs: Names of tensors of the main graph.
        providers: Execution providers, first choice first.

    Raises:
        ModelError: If onnxruntime cannot load the model, or a provider is not available.
    """
    import onnxruntime

    unknown = [provider for provider in providers if provider not in onnxruntime.get_available_providers()]
    if unknown:
        raise ModelError(
            f"ObserveOptions.providers must be among {onnxruntime.get_available_providers()}, got {unknown[0]!r}"
        )
    options = onnxruntime.SessionOptions()
    # Counting runs beside inference, so threads that spin while they wait would take its core away.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # What it has to say is in the exceptions.
    options.log_severity_level = 4
    exposed = expose(model, outputs)
    try:
        if _weight_bytes(exposed) <= INLINE_LIMIT_BYTES:
            return onnxruntime.InferenceSession(serialize(exposed), options, providers=list(providers))
        with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(exposed, path, external_data_threshold=0)
            return onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except ModelError:
        raise
    except Exception as error:
        # onnxruntime's exceptions share no base class below Exception.
        raise ModelError(f"onnxruntime must be able to load the float model, got {error}; observe") from error


def expose(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """Return a copy of the model whose outputs are the tensors named; its weights are shared, not copied."""
    exposed = model.clone()
    values = {value.name: value for node in exposed.graph for value in node.outputs}
    exposed.graph.outputs.clear()
    exposed.graph.outputs.extend(values[name] for name in outputs)
    return exposed


def _weight_bytes(model: ir.Model) -> int:
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
