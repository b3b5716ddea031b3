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
_TORCH_CONFIGS = "Config LSQSpec QConfig QLayerConfig QTensorConfig QuantizationConfig QuantizationSpec TQTSpec"
_TORCH_EXPORT = "ExporterConfig JsonExporterConfig ModelExporter OnnxExporterConfig export_onnx load_params save_params"
_TORCH_OBSERVERS = (
    "LSQObserver ObserverBase PerBlockBFPObserver PerBlockMXObserver PerChannelMinMaxObserver "
    "PerChannelPowOf2MinMSEObserver PerChannelPowOf2MinMaxObserver PerGroupMinMaxObserver PerTensorHistogramObserver "
    "PerTensorHistogramObserverPro PerTensorMSEObserver PerTensorMinMaxObserver PerTensorPercentileObserver "
    "PerTensorPowOf2MinMSEObserver PerTensorPowOf2MinMaxObserver PlaceholderObserver TQTObserver"
)

_TOOLS = (
    "convert_a8w8_npu_to_a8w8_cpu",
    "convert_bias_int32_to_int16",
    "convert_custom_ops",
    "convert_customqdq_to_qdq",
    "convert_dynamic_to_fixed",
    "convert_fp16_to_bf16",
    "convert_fp16_to_bfp16",
    "convert_fp16_to_fp32",
    "convert_fp32_to_bf16",
    "convert_fp32_to_bfp16",
    "convert_fp32_to_fp16",
    "convert_nchw_to_nhwc",
    "convert_onnx_to_onnxtxt",
    "convert_onnxtxt_to_onnx",
    "convert_opset_version",
    "convert_qdq_to_qop",
    "convert_quant_to_float",
    "convert_resize_fs_to_pof2s",
    "convert_s8s8_to_u8s8",
    "convert_shared_initializer_to_unique",
    "convert_u16s8_to_s16s8",
    "convert_u16u8_to_u8u8",
    "evaluate",
    "fix_shapes",
    "float16",
    "insert_clip_bfloat16_qdq",
    "print_a16w8_a8w8_nodes",
    "random_quantize",
    "remove_bf16_cast",
    "remove_initializer_from_input",
    "remove_qdq",
    "remove_qdq_between_ops",
    "remove_qdq_mul_add",
    "replace_bfloat16_qdq_cast",
    "replace_inf_weights",
    "save_tensor_hist",
    "save_weights_hist",
)
TOOL_ALIASES = {
    "convert_customqdq_to_qdq": "custom_ops_infer_shapes",
    "convert_dynamic_to_fixed": "fix_shapes",
    "float16": "convert_float16_to_float convert_float_to_float16",
    "print_a16w8_a8w8_nodes": "a16w8_a8w8_nodes",
    "replace_inf_weights": "replace_inf_in_onnx_weights",
}
"""Other functions of AMD's modules of tools."""

_TOOL_MODULES = {
    "tools": " ".join(_TOOLS),
    **{
        f"tools.{name}": f"convert main {name} run_main {TOOL_ALIASES.get(name, '')}".rstrip()
        for name in _TOOLS
        if name != "evaluate"
    },
    "tools.evaluate": "evaluate main",
}
_ALGORITHMS = (
    "AdaQuantConfig AdaRoundConfig AlgoConfig AutoMixprecisionConfig BiasCorrectionConfig CLEConfig GPTQConfig "
    "QuarotConfig SmoothQuantConfig"
)
_DATA_TYPES = (
    "BFP16 BFloat16 DataType Float16 Int8 Int16 Int32 MX4 MX6 MX9 MXFP4E2M1 MXFP6E2M3 MXFP6E3M2 MXFP8E4M3 MXFP8E5M2 "
    "MXInt8 UInt8 UInt16 UInt32 parse_data_type"
)
_SPECS = (
    "BFP16Spec BFloat16Spec CalibMethod Float16Spec Int8Spec Int16Spec Int32Spec MX4Spec MX6Spec MX9Spec MXFP4E2M1Spec "
    "MXFP6E2M3Spec MXFP6E3M2Spec MXFP8E4M3Spec MXFP8E5M2Spec MXInt8Spec QLayerConfig QTensorConfig QuantGranularity "
    "ScaleType UInt8Spec UInt16Spec UInt32Spec XInt8Spec"
)
_SEARCH = "AutoSearch AutoSearchPro SearchSpace generate_all_configs get_auto_search_config"
_SESSIONS = "create_infer_session_for_onnx_model register_custom_ops_library"
_DISTANCES = "calculate_cos calculate_l1_distance calculate_l2_distance calculate_psnr calculate_ssim"

MODULE_NAMES: Mapping[str, Mapping[str, str]] = {
    "quantry.onnx": {
        "calibrate": f"{_METHODS} {_READERS}",  # AMD Quark up to 0.8
        "calibration": f"{_METHODS} {_READERS} get_data_reader",
        "calibration.data_readers": f"{_READERS} get_data_reader",
        "calibration.methods": _METHODS,
        "operators.custom_ops": "_COP_DOMAIN _COP_VERSION get_library_path",
        "quant_utils": f"{_QUANT_UTILS} {_READERS} {_SESSIONS} dump_model",  # AMD Quark up to 0.9
        "quantization": "Config ModelQuantizer QConfig QLayerConfig QTensorConfig QuantizationConfig "
        f"get_default_config quantize_dynamic quantize_static {_ALGORITHMS}",
        "quantization.api": "ModelQuantizer",
        "quantization.auto_search": f"{_SEARCH} AutoSearchConfig",
        "quantization.auto_search.auto_search_pro": "AutoSearchPro SearchSpace generate_all_configs "
        "get_auto_search_config",
        "quantization.auto_search.auto_search_v1": "AutoSearch AutoSearchConfig AutoSearchConfig_Default METRICS "
        "SearchSpace cos_metric l1_metric l2_metric psnr_metric ssim_metric",
        "quantization.auto_search.config_generator": "SearchSpace generate_all_configs",
        "quantization.auto_search.qconfig_mapping": "AUTO_SEARCH_CONFIGS get_auto_search_config",
        "quantization.config": "Config DefaultConfigMapping QConfig QLayerConfig QTensorConfig QuantizationConfig "
        f"get_default_config get_default_config_mapping {_ALGORITHMS}",
        "quantization.config.algorithm": _ALGORITHMS,
        "quantization.config.config": "Config QConfig QuantizationConfig",
        "quantization.config.custom_config": "Config DEFAULT_CONFIGS DefaultConfigMapping QConfig QuantizationConfig "
        "get_default_config get_default_config_mapping",
        "quantization.config.data_type": _DATA_TYPES,
        "quantization.config.legacy": "Config QuantizationConfig",
        "quantization.config.spec": _SPECS,
        "quantization.output_eval": f"{_DISTANCES} eval_metrics",
        "quantization.quant_utils": f"{_QUANT_UTILS} {_SESSIONS} dump_model",  # AMD Quark 0.10 and later
        "quantization.quantize": "quantize_dynamic quantize_static",
        "quantize": "quantize_dynamic quantize_static",  # AMD Quark up to 0.8
        **_TOOL_MODULES,
        "utils.deploy_utils": "dump_model",
        "utils.model_utils": _SESSIONS,
    },
    "quantry.torch": {
        "export": _TORCH_EXPORT,
        "export.api": _TORCH_EXPORT,
        "export.config.config": _TORCH_EXPORT,
        "quantization": "ModelQuantizer",
        "quantization.api": "ModelQuantizer",
        "quantization.config.config": _TORCH_CONFIGS,
        "quantization.config.type": "DeviceType Dtype QSchemeType QuantFlow QuantizationMode RoundType ScaleType "
        "TQTThresholdInitMeth ZeroPointType",
        "quantization.graph.ops": "DeQuantStub QuantStub",
        "quantization.graph.ops.quant_stubs": "DeQuantStub QuantStub",
        "quantization.graph.torch_utils": "_active_bn _enable_fake_quant _enable_observer _move_exported_model_to_eval "
        "_move_exported_model_to_train allow_exported_model_train_eval",
        "quantization.observer": _TORCH_OBSERVERS,
        "quantization.observer.lsq_observer": "LSQObserver",
        "quantization.observer.observer": _TORCH_OBSERVERS,
        "quantization.observer.tqt_observer": "TQTObserver",
    },
    "quantry.vai_q_onnx": {
        "calibrate": "CalibrationDataReader CalibrationMethod PowerOfTwoMethod",
        "quant_utils": "PowerOfTwoMethod QuantFormat QuantType VitisQuantFormat VitisQuantType dump_model",
        "shape_inference": "quant_pre_process",
        **_TOOL_MODULES,
    },
}
"""By package: the path of each module below it, and the names it has."""

TOOL_PATHS = tuple(f"tools.{name}" for name in _TOOLS)
"""The modules of `quantry.onnx` that are tools; their names are computed on first use."""


def register(package: str, *sources: ModuleType, computed: Mapping[str, Callable[[str], Any]] | None = None) -> None:
    """Make the modules of a facade package importable.

    Args:
        package: The package, one of `MODULE_NAMES`; it is being imported.
        sources: Modules that have names which the package itself does not have.
        computed: Module-level ``__getattr__`` functions, by module path; they may have names of the table.

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
        lazy = None if computed is None else computed.get(path)
        if lazy is not None:
            module.__getattr__ = lazy  # type: ignore[method-assign]
        for name in names.split():
            values = [found[name] for found in known if name in found]
            # The parts of a package are modules of their own, which this loop makes too.
            if values or (lazy is None and f"{path}.{name}" not in MODULE_NAMES[package]):
                setattr(module, name, values[0])


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
