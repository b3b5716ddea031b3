"""Ask onnxruntime and onnx whether they accept a model, before work starts and before a result is reported.

A float model is checked without its large weights: inputs of the same name, type and shape replace them, so the answer
costs milliseconds for a model of any size. onnxruntime decides, because it runs the model later. Where it has no kernel
for an operator, onnx's checker decides.
"""

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import InternalError, ModelError, UserError
from quantry.graph.weights import LARGE_BYTES, all_weights, written_with
from quantry.runtime.sessions import load_error, run_session, simulation_session

_LENGTH = 400  # characters of a library's message that are shown; onnxruntime appends positions in its own source


def check_accepted(model: ir.Model, label: str) -> None:
    """Check that onnxruntime can open a session for the model, or that onnx's checker accepts it.

    Raises:
        ModelError: Neither does; the message is theirs and names the node.
    """
    proto = _without_large_weights(model)
    error = load_error(proto.SerializeToString())
    if error is None:
        return
    if _has_no_kernel(error):
        # Weights of a valid operator can be quantized even if only other runtimes compute it.
        complaint = _checker_complaint(proto)
        if complaint is None:
            return
        error = complaint
    raise ModelError(
        f"the model must be valid ONNX that onnxruntime loads, got: {_short(error)}; in {label}"
    ) from error


def reason_to_refuse(model: ir.Model, sample: Callable[[], Mapping[str, NDArray[Any]]]) -> str | None:
    """Return what is wrong with a float model that could not be quantized; None if it is valid and runs.

    Args:
        model: The model of the user.
        sample: Returns inputs for one run.
    """
    proto = _without_large_weights(model)
    complaint = _checker_complaint(proto)
    if complaint is not None:
        return _short(complaint)
    error = load_error(proto.SerializeToString())
    if error is not None:
        return None if _has_no_kernel(error) else _short(error)
    try:
        run_session(simulation_session(model), sample())
    except UserError as failure:
        return _short(failure)
    return None


def check_written(written: bytes | Path, model: Callable[[], ir.Model]) -> None:
    """Check that onnxruntime and onnx's checker accept a written model, wherever they accept the original.

    Args:
        written: The bytes of the quantized model, or its file.
        model: Returns the model of the user; called only if something is wrong.

    Raises:
        InternalError: The written model is refused although the original is not.
    """
    error = load_error(written, optimized=True)
    if error is not None:
        original = load_error(_without_large_weights(model()).SerializeToString())
        if original is None or not _has_no_kernel(original):
            raise InternalError(
                f"a quantized model must be one that onnxruntime loads, got: {_short(error)}; if your model is valid, "
                "please report this as a bug; verify=False or --no-verify skips this check"
            ) from error
    complaint = _checker_complaint(written)
    if complaint is not None and _checker_complaint(_without_large_weights(model())) is None:
        raise InternalError(
            f"a quantized model must be one that onnx.checker accepts, got: {_short(complaint)}; please report this "
            "as a bug; verify=False or --no-verify skips this check"
        ) from complaint


def _short(error: Exception) -> str:
    return textwrap.shorten(str(error), _LENGTH)


def _has_no_kernel(error: Exception) -> bool:
    return type(error).__name__ == "NotImplemented"


def _checker_complaint(model: onnx.ModelProto | bytes | Path) -> Exception | None:
    """Return what onnx's checker finds wrong with a model, types and shapes included; None if it accepts it."""
    try:
        onnx.checker.check_model(str(model) if isinstance(model, Path) else model, full_check=True)
    except Exception as error:  # ValidationError, InferenceError, and TypeError for text that is not UTF-8
        return error
    return None


def _without_large_weights(model: ir.Model) -> onnx.ModelProto:
    weights = {key: value.const_value for key, value in all_weights(model).items() if value.const_value is not None}
    large = {key[1]: tensor for key, tensor in weights.items() if key[0] == 0 and _is_large(tensor)}
    # A subgraph has no inputs that could replace a weight, so its external weights are read.
    inner = {key: ir.tensor(tensor.numpy()) for key, tensor in weights.items() if key[0] > 0 and _is_external(tensor)}
    proto = written_with(model, inner, left_out=large)
    listed = {value.name for value in proto.graph.input}
    proto.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, int(tensor.dtype), list(tensor.shape.numpy()))
        for name, tensor in large.items()
        if name not in listed
    )
    return proto


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and (tensor.nbytes > LARGE_BYTES or _is_external(tensor))


def _is_external(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.ExternalTensor)
