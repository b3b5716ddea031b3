"""What happened to one mutated model, according to onnx.checker and onnxruntime."""

import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from quantry.errors import UserError

RECIPES = ("S8S8_AAWS", "XINT8", "MATMUL_NBITS", "recommended-cpu", "UINT8_DYNAMIC_QUANT", "FP16", "recommended-npu")
"""Fixed-point, power-of-two, weight-only, tuned, dynamic and float formats; coprime to the number of base models."""


@dataclass(frozen=True)
class Outcome:
    """What happened.

    Attributes:
        kind: "quantized", "refused", "refused a valid model", or a failure.
        detail: The message.
    """

    kind: str
    detail: str

    @property
    def is_failure(self) -> bool:
        """Whether this must not happen."""
        return self.kind not in ("quantized", "refused", "refused a valid model")


def outcome_of(content: bytes, recipe: str) -> Outcome:
    """Quantize a model without data and check the result."""
    import onnxruntime

    import quantry

    onnxruntime.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    try:
        result = quantry.quantize(content, None, recipe, store=None)
        written = result.to_bytes()
    except UserError as error:
        if b"recursive" in content:
            # onnxruntime itself needs minutes to refuse what expands without end.
            return Outcome("refused", f"{recipe}: {error}"[:400])
        kind = "refused a valid model" if _runs(content, finite=True) and _passes_checker(content) else "refused"
        return Outcome(kind, f"{recipe}: {type(error).__name__}: {error}"[:400])
    except Exception as error:
        place = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        at = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return Outcome(f"raised {type(error).__name__}", f"{recipe} at {at}: {error}"[:400])
    if _passes_checker(content) and not _passes_checker(written):
        return Outcome("written model fails onnx.checker", f"{recipe}: {_complaint(written)}"[:400])
    if _session(content) is not None and _session(written) is None:
        return Outcome("written model does not load", f"{recipe}: {_refusal(written)}"[:400])
    if _runs(content) and not _runs(written):
        return Outcome("written model does not run", recipe)
    return Outcome("quantized", recipe)


def _complaint(content: bytes) -> str:
    try:
        onnx.checker.check_model(onnx.load_model_from_string(content), full_check=True)
    except Exception as error:
        return str(error)
    return ""


def _passes_checker(content: bytes) -> bool:
    return not _complaint(content)


def _refusal(content: bytes) -> str:
    import onnxruntime

    try:
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    return ""


def _session(content: bytes) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception:
        return None


def _runs(content: bytes, *, finite: bool = False) -> bool:
    """Whether onnxruntime runs the model, and its results are finite if that is wanted."""
    session = _session(content)
    if session is None:
        return False
    try:
        feeds = {port.name: _random(port.type, port.shape) for port in session.get_inputs()}
        found = session.run(None, feeds)
    except Exception:
        return False
    floats = [value for value in found if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    return not finite or all(bool(np.isfinite(value).all()) for value in floats)


def _random(kind: str, shape: list[Any]) -> np.ndarray[Any, Any]:
    lengths = [length if isinstance(length, int) else 1 for length in shape]
    if np.prod(lengths, dtype=float) > 1e7:
        raise ValueError(f"an input of shape {lengths} is too large to try")
    types = {"float": "float32", "double": "float64"}
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.random.default_rng(0).random(lengths).astype(types.get(name, name))
