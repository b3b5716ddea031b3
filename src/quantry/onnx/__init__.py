"""The API of AMD Quark for ONNX (``quark.onnx``) on top of quantry; one table translates its options.

Named configurations are attributes such as ``XINT8_QCONFIG``; each access returns a new copy.
"""

from functools import partial
from importlib import import_module
from typing import Any

from quantry import module_paths
from quantry.onnx import auto_search, data_readers, deployment, output_metrics, presets, specs
from quantry.onnx.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from quantry.onnx.auto_search import (
    AutoSearch,
    AutoSearchPro,
    SearchSpace,
    generate_all_configs,
    get_auto_search_config,
)
from quantry.onnx.config import Config, QuantizationConfig
from quantry.onnx.data_readers import CachedDataReader, CalibrationDataReader, PathDataReader, RandomDataReader
from quantry.onnx.deployment import dump_model, get_library_path
from quantry.onnx.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantGranularity,
    QuantType,
    ScaleType,
    VitisQuantFormat,
    VitisQuantType,
)
from quantry.onnx.pre_process import quant_pre_process
from quantry.onnx.presets import (
    DefaultConfigMapping,
    get_default_config,
    get_default_config_mapping,
    named_config,
)
from quantry.onnx.qconfig import QConfig
from quantry.onnx.quantizer import ModelQuantizer, quantize_dynamic, quantize_static
from quantry.onnx.specs import (
    BFP16,
    MX4,
    MX6,
    MX9,
    MXFP4E2M1,
    MXFP6E2M3,
    MXFP6E3M2,
    MXFP8E4M3,
    MXFP8E5M2,
    BFloat16,
    BFloat16Spec,
    BFP16Spec,
    Float16,
    Float16Spec,
    Int8,
    Int8Spec,
    Int16,
    Int16Spec,
    Int32,
    Int32Spec,
    MX4Spec,
    MX6Spec,
    MX9Spec,
    MXFP4E2M1Spec,
    MXFP6E2M3Spec,
    MXFP6E3M2Spec,
    MXFP8E4M3Spec,
    MXFP8E5M2Spec,
    MXInt8,
    MXInt8Spec,
    QLayerConfig,
    QTensorConfig,
    UInt8,
    UInt8Spec,
    UInt16,
    UInt16Spec,
    UInt32,
    UInt32Spec,
    XInt8Spec,
    parse_data_type,
)
from quantry.recipe import DataType

__all__ = [
    "BFP16",
    "MX4",
    "MX6",
    "MX9",
    "MXFP4E2M1",
    "MXFP6E2M3",
    "MXFP6E3M2",
    "MXFP8E4M3",
    "MXFP8E5M2",
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "AutoSearch",
    "AutoSearchPro",
    "BFP16Spec",
    "BFloat16",
    "BFloat16Spec",
    "BiasCorrectionConfig",
    "CLEConfig",
    "CachedDataReader",
    "CalibMethod",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Config",
    "DataType",
    "DefaultConfigMapping",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Float16",
    "Float16Spec",
    "GPTQConfig",
    "Int8",
    "Int8Spec",
    "Int16",
    "Int16Method",
    "Int16Spec",
    "Int32",
    "Int32Spec",
    "LayerWiseMethod",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8",
    "MXInt8Spec",
    "ModelQuantizer",
    "PathDataReader",
    "PowerOfTwoMethod",
    "QConfig",
    "QLayerConfig",
    "QTensorConfig",
    "QuantFormat",
    "QuantGranularity",
    "QuantType",
    "QuantizationConfig",
    "QuarotConfig",
    "RandomDataReader",
    "ScaleType",
    "SearchSpace",
    "SmoothQuantConfig",
    "UInt8",
    "UInt8Spec",
    "UInt16",
    "UInt16Spec",
    "UInt32",
    "UInt32Spec",
    "VitisQuantFormat",
    "VitisQuantType",
    "XInt8Spec",
    "dump_model",
    "generate_all_configs",
    "get_auto_search_config",
    "get_default_config",
    "get_default_config_mapping",
    "get_library_path",
    "named_config",
    "parse_data_type",
    "quant_pre_process",
    "quantize_dynamic",
    "quantize_static",
]

_OF_ONNXRUNTIME = {
    "CalibraterBase": "onnxruntime.quantization.calibrate",
    "MinMaxCalibrater": "onnxruntime.quantization.calibrate",
    "QuantizationMode": "onnxruntime.quantization.quant_utils",
    "write_calibration_table": "onnxruntime.quantization.quant_utils",
}
"""Names of onnxruntime that AMD Quark has too; imported on first use."""


def __getattr__(name: str) -> Any:
    if name in _OF_ONNXRUNTIME:
        return getattr(import_module(_OF_ONNXRUNTIME[name]), name)
    return named_config(__name__, name)


def _tool_member(path: str, name: str) -> Any:
    """Return what the module of a tool has; the tools are imported on first use.

    Args:
        path: The module, such as ``tools.remove_qdq``.
        name: The name.
    """
    return import_module("quantry.onnx.model_tools").tool_member(path.removeprefix("tools."), name)


module_paths.register(
    __name__,
    auto_search,
    data_readers,
    deployment,
    output_metrics,
    presets,
    specs,
    computed={
        "quantization.config.custom_config": partial(named_config, "quantry.onnx.quantization.config.custom_config"),
        **{path: partial(_tool_member, path) for path in module_paths.TOOL_PATHS},
    },
)
