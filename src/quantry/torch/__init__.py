"""The API of Quark for PyTorch (``quark.torch``), old and new names, and quantry's own functions for PyTorch.

Replace ``from quark.torch import ModelQuantizer`` by ``from quantry.torch import ModelQuantizer`` to run an existing
script. Importing this package restores ``torch.export.export_for_training`` in versions of torch that removed it.
"""

from importlib import import_module, util
from typing import Any

from quantry import errors, module_paths
from quantry.torch import switches
from quantry.torch.config import Config, QConfig, QLayerConfig, QTensorConfig, QuantizationConfig, QuantizationSpec
from quantry.torch.enums import (
    DeviceType,
    Dtype,
    LSQObserver,
    LSQSpec,
    ObserverBase,
    PerBlockBFPObserver,
    PerBlockMXObserver,
    PerChannelMinMaxObserver,
    PerChannelPowOf2MinMaxObserver,
    PerChannelPowOf2MinMSEObserver,
    PerGroupMinMaxObserver,
    PerTensorHistogramObserver,
    PerTensorHistogramObserverPro,
    PerTensorMinMaxObserver,
    PerTensorMSEObserver,
    PerTensorPercentileObserver,
    PerTensorPowOf2MinMaxObserver,
    PerTensorPowOf2MinMSEObserver,
    PlaceholderObserver,
    QSchemeType,
    QuantFlow,
    QuantizationMode,
    RoundType,
    ScaleType,
    TQTObserver,
    TQTSpec,
    TQTThresholdInitMeth,
    ZeroPointType,
)
from quantry.torch.exporter import (
    ExporterConfig,
    JsonExporterConfig,
    ModelExporter,
    OnnxExporterConfig,
    export_onnx,
)
from quantry.torch.quantizer import ModelQuantizer
from quantry.torch.saving import load_params, save_params
from quantry.torch.specs import SPECS

_FRONT_END = (
    "DistillationLoss",
    "ExportOptions",
    "Exported",
    "FloatScopes",
    "MovingAverage",
    "QatOptions",
    "QatSchedule",
    "QuantizedModule",
    "RecordedLoss",
    "balance_channels",
    "capture",
    "choose_scales",
    "enable_quantizers",
    "export",
    "export_for_training",
    "float_teacher",
    "float_copy",
    "freeze",
    "freeze_batch_norm",
    "freeze_observers",
    "learn_scales",
    "qat",
    "quantize_graph",
    "tune_weights",
    "start_observers",
)

__all__ = [  # noqa: PLE0604  the short forms of specifications come from a table
    *SPECS,
    "Config",
    "DeviceType",
    "DistillationLoss",
    "Dtype",
    "ExportOptions",
    "Exported",
    "ExporterConfig",
    "FloatScopes",
    "JsonExporterConfig",
    "LSQObserver",
    "LSQSpec",
    "ModelExporter",
    "ModelQuantizer",
    "MovingAverage",
    "ObserverBase",
    "OnnxExporterConfig",
    "PerBlockBFPObserver",
    "PerBlockMXObserver",
    "PerChannelMinMaxObserver",
    "PerChannelPowOf2MinMSEObserver",
    "PerChannelPowOf2MinMaxObserver",
    "PerGroupMinMaxObserver",
    "PerTensorHistogramObserver",
    "PerTensorHistogramObserverPro",
    "PerTensorMSEObserver",
    "PerTensorMinMaxObserver",
    "PerTensorPercentileObserver",
    "PerTensorPowOf2MinMSEObserver",
    "PerTensorPowOf2MinMaxObserver",
    "PlaceholderObserver",
    "QConfig",
    "QLayerConfig",
    "QSchemeType",
    "QTensorConfig",
    "QatOptions",
    "QatSchedule",
    "QuantFlow",
    "QuantizationConfig",
    "QuantizationMode",
    "QuantizationSpec",
    "QuantizedModule",
    "RecordedLoss",
    "RoundType",
    "ScaleType",
    "TQTObserver",
    "TQTSpec",
    "TQTThresholdInitMeth",
    "ZeroPointType",
    "balance_channels",
    "capture",
    "choose_scales",
    "enable_quantizers",
    "export",
    "export_for_training",
    "export_onnx",
    "float_copy",
    "float_teacher",
    "freeze",
    "freeze_batch_norm",
    "freeze_observers",
    "learn_scales",
    "load_params",
    "qat",
    "quantize_graph",
    "save_params",
    "start_observers",
    "tune_weights",
]

globals().update(SPECS)

if util.find_spec("torch") is None:
    raise errors.MissingExtraError("quantry.torch needs torch, which is not installed; install quantry[torch]")
import_module("quantry.torchfront").install_export_for_training()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _FRONT_END:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{errors.nearest_spelling(name, __all__)}")
    return getattr(import_module("quantry.torchfront"), name)


module_paths.register(__name__, switches, import_module("quantry.torchfront.quant_stubs"))
