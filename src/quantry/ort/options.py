"""onnxruntime's names of options that AMD Quark calls otherwise or does not have."""

from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from quantry.onnx.enums import QuantType

_TYPES = {
    TensorProto.UINT8: QuantType.QUInt8,
    TensorProto.INT8: QuantType.QInt8,
    TensorProto.UINT16: QuantType.QUInt16,
    TensorProto.INT16: QuantType.QInt16,
    TensorProto.UINT4: QuantType.QUInt4,
    TensorProto.INT4: QuantType.QInt4,
    TensorProto.FLOAT8E4M3FN: QuantType.QFLOAT8E4M3FN,
}
_RENAMED = {"SmoothQuantAlpha": "SmoothAlpha", "scenario": "Scenario"}
_NO_EFFECT = ("extra.Sigmoid.nnapi", "QDQKeepRemovableActivations", "CalibStridedMinMax", "CalibMaxIntermediateOutputs")
"""Options about how onnxruntime works inside; the facade itself reads whether to keep Relu and Clip."""


def own_type(member: Any) -> Any:
    """Return our member for a number type; onnxruntime also takes ONNX's numbers of types."""
    return _TYPES.get(member, member) if isinstance(member, int) and not isinstance(member, bool) else member


def own_options(extra_options: Mapping[str, Any] | None, method: Any = None) -> dict[str, Any]:
    """Return onnxruntime's ``extra_options`` in the names of docs/reference/options.md.

    Args:
        extra_options: The options.
        method: The calibration method, if any.
    """
    # None stands for the default.
    listed = {key: value for key, value in (extra_options or {}).items() if value is not None and key not in _NO_EFFECT}
    options = {_RENAMED.get(key, key): value for key, value in listed.items()}
    if "QDQDisableWeightAdjustForInt32Bias" in options:
        options["AdjustWeightScaleForInt32Bias"] = not options.pop("QDQDisableWeightAdjustForInt32Bias")
    if getattr(method, "name", "") != "Percentile" and options.pop("CalibTensorRangeSymmetric", False):
        # Other methods find both ends of a range; one that is symmetric then makes the type symmetric.
        options["ActivationSymmetric"] = True
    options.pop("SmoothQuant", None)
    options.pop("SmoothQuantFolding", None)
    overrides = options.get("TensorQuantOverrides")
    if isinstance(overrides, Mapping):
        options["TensorQuantOverrides"] = {
            name: [_typed(entry) for entry in ([entries] if isinstance(entries, Mapping) else entries)]
            for name, entries in overrides.items()
        }
    return options


def _typed(entry: Mapping[str, Any]) -> dict[str, Any]:
    typed = {key: own_type(value) if key == "quant_type" else value for key, value in entry.items()}
    if isinstance(entry.get("convert"), Mapping):
        typed["convert"] = _typed(entry["convert"])
    return typed
