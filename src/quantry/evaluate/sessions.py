"""onnxruntime sessions: one that computes what the model says, and one as a user would open it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError, RecipeError, nearest_spelling
from quantry.evaluate.portable import portable

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
