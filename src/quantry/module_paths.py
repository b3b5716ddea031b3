"""Module paths of AMD Quark and vai_q_onnx that exist here as names only.

Scripts import from deep paths such as ``quark.onnx.quantization.config.spec``. Each path is one row of a table instead
of a file of re-exports. A facade package calls `register` when it is imported, so ``import
quantry.onnx.quantization.config.spec`` finds the module in ``sys.modules``. Type checkers do not see these modules:
they know every name under ``quantry.onnx``, ``quantry.torch`` and ``quantry.vai_q_onnx``.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_READERS = "CachedDataReader CalibrationDataReader PathDataReader RandomDataReader"
_METHODS = "CalibrationMethod ExtendedCalibrationMethod Int16Method LayerWiseMethod PowerOfTwoMethod"
_QUANT_UTILS = (
    "CalibrationMethod ExtendedQuantFormat ExtendedQuantType Int16Method LayerWiseMethod PowerOfTwoMethod QuantFormat "
    "QuantType VitisQuantFormat VitisQuantType"
)
_TORCH_CONFIGS = "Config QConfig QLayerConfig QTensorConfig QuantizationConfig QuantizationSpec"
_TORCH_EXPORT = "ExporterConfig JsonExporterConfig ModelExporter OnnxExporterConfig export_onnx"

MODULE_NAMES: Mapping[str, Mapping[str, str]] = {
    "quantry.onnx": {
        "calibration": f"{_METHODS} {_READERS}",
        "calibration.methods": _METHODS,
        "operators.custom_ops": "get_library_path",
        "quant_utils": _QUANT_UTILS,  # AMD Quark up to 0.9
        "quantization": "Config ModelQuantizer QConfig QuantizationConfig get_default_config quantize_dynamic "
        "quantize_static",
        "quantization.api": "ModelQuantizer",
        "quantization.auto_search": "AutoSearch AutoSearchPro SearchSpace",
        "quantization.auto_search.auto_search_pro": "AutoSearchPro get_auto_search_config",
        "quantization.auto_search.auto_search_v1": "AutoSearch AutoSearchConfig AutoSearchConfig_Default",
        "quantization.config": "Config QConfig QLayerConfig QTensorConfig QuantizationConfig get_default_config",
        "quantization.config.algorithm": "AdaQuantConfig AdaRoundConfig AlgoConfig AutoMixprecisionConfig "
        "BiasCorrectionConfig CLEConfig GPTQConfig QuarotConfig SmoothQuantConfig",
        "quantization.config.config": "Config QConfig QuantizationConfig",
        "quantization.config.custom_config": "DEFAULT_CONFIGS get_default_config",
        "quantization.config.data_type": "BFP16 BFloat16 DataType Float16 Int8 Int16 Int32 UInt8 UInt16 UInt32",
        "quantization.config.spec": "BFP16Spec BFloat16Spec CalibMethod Float16Spec Int8Spec Int16Spec Int32Spec "
        "MX4Spec MX6Spec MX9Spec MXFP4E2M1Spec MXFP6E2M3Spec MXFP6E3M2Spec MXFP8E4M3Spec MXFP8E5M2Spec MXInt8Spec "
        "QLayerConfig QTensorConfig QuantGranularity ScaleType UInt8Spec UInt16Spec UInt32Spec XInt8Spec",
        "quantization.quant_utils": _QUANT_UTILS,  # AMD Quark 0.10 and later
        "quantization.quantize": "quantize_dynamic quantize_static",
    },
    "quantry.torch": {
        "export": _TORCH_EXPORT,
        "export.api": _TORCH_EXPORT,
        "export.config.config": _TORCH_EXPORT,
        "quantization": "ModelQuantizer",
        "quantization.api": "ModelQuantizer",
        "quantization.config.config": _TORCH_CONFIGS,
        "quantization.config.type": "DeviceType Dtype QSchemeType QuantFlow QuantizationMode RoundType ScaleType "
        "ZeroPointType",
        "quantization.observer.observer": "LSQObserver ObserverBase PerBlockBFPObserver PerBlockMXObserver "
        "PerChannelMinMaxObserver PerChannelPowOf2MinMSEObserver PerChannelPowOf2MinMaxObserver PerGroupMinMaxObserver "
        "PerTensorHistogramObserver PerTensorHistogramObserverPro PerTensorMSEObserver PerTensorMinMaxObserver "
        "PerTensorPercentileObserver PerTensorPowOf2MinMSEObserver PerTensorPowOf2MinMaxObserver PlaceholderObserver "
        "TQTObserver",
    },
    "quantry.vai_q_onnx": {"shape_inference": "quant_pre_process"},
}
"""By package: the path of each module below it, and the names it has."""


def register(package: str, *sources: ModuleType, computed: Mapping[str, Callable[[str], Any]] | None = None) -> None:
    """Make the modules of a facade package importable.

    Args:
        package: The package, one of `MODULE_NAMES`; it is being imported.
        sources: Modules that have names which the package itself does not have.
        computed: Module-level ``__getattr__`` functions, by module path.

    Example:
        >>> import quantry.onnx.quantization.config.spec as spec
        >>> spec.Int8Spec is quantry.onnx.Int8Spec
        True
    """
    known = [vars(source) for source in (sys.modules[package], *sources)]
    for path, names in MODULE_NAMES[package].items():
        module = _module(f"{package}.{path}")
        module.__doc__ = f"The names of AMD's module ``{path}``."
        module.__all__ = names.split()  # type: ignore[attr-defined]
        vars(module).update({name: next(found[name] for found in known if name in found) for name in names.split()})
        if computed is not None and path in computed:
            module.__getattr__ = computed[path]  # type: ignore[method-assign]


def _module(name: str) -> ModuleType:
    """Return the module of that name; it and the packages above it are created where they are missing."""
    if name in sys.modules:
        return sys.modules[name]
    package, _, leaf = name.rpartition(".")
    parent = _module(package)
    module = ModuleType(name, "A package of AMD's.")
    module.__path__ = []  # It marks a package, so that submodules can be imported; nothing is searched on disk.
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    # In quantry.torch, `export` is a function: importing quantry.torch.export.api must not replace it.
    if not hasattr(parent, leaf):
        setattr(parent, leaf, module)
    return module
