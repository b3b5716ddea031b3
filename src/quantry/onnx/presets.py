"""AMD Quark's named configurations, as data.

A configuration here is what the peer's of the same name sets, as far as the stages can do it; what is left out is in
`quantry.recipe.Preset.pending` and is logged when the configuration is handed out. One whose algorithm is missing as a
whole, such as finetuning, keeps its switch, which then says so when it is used.

Named configurations as objects of modules: ``XINT8_CONFIG`` and, by tensors, ``XINT8_QCONFIG``.

Scripts import these and edit them, so every access hands out a new copy.
"""

import copy
import logging
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
)
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    PowerOfTwoMethod,
    QuantType,
    ScaleType,
    spec_of,
)
from quantry.onnx.qconfig import QConfig
from quantry.onnx.specs import BFP16Spec, Int8Spec, MXInt8Spec, QLayerConfig, QTensorConfig
from quantry.recipe import PRESETS

_LOG = logging.getLogger("quantry")
_FORCE = {"ForceQuantizeNoInputCheck": True}
_EXTENDED = ExtendedQuantFormat.QDQ


def _config(*types: Any, method: Any = CalibrationMethod.MinMax, options: Any = None, **settings: Any) -> Any:
    activation, weight = types
    return QuantizationConfig(
        calibrate_method=method,
        activation_type=activation,
        weight_type=weight,
        extra_options=dict(options or {}),
        include_cle=True,
        **settings,
    )


def _integers(*types: Any, percentile: float | None = None, **settings: Any) -> QuantizationConfig:
    options = _FORCE | settings.pop("options", {}) | ({} if percentile is None else {"Percentile": percentile})
    made: QuantizationConfig = _config(*types, method=CalibrationMethod.Percentile, options=options, **settings)
    return made


def _float(kind: ExtendedQuantType, **options: Any) -> QuantizationConfig:
    made: QuantizationConfig = _config(kind, kind, options=_FORCE | options, quant_format=_EXTENDED)
    return made


def _bfp(bits: int, *types: Any) -> QuantizationConfig:
    attributes = {"bfp_method": "to_bfp_prime", "axis": 1, "bit_width": bits, "block_size": 16, "rounding_mode": 2}
    options = {"BFPAttributes": attributes | {"sub_block_size": 2, "sub_block_shift_bits": 1}}
    made: QuantizationConfig = _config(*(types or (_BFP, _BFP)), options=options, quant_format=_EXTENDED)
    return made


def _mx(element: str, *types: Any) -> QuantizationConfig:
    options = {"MXAttributes": {"element_dtype": element, "axis": 1, "block_size": 32, "rounding_mode": 2}}
    made: QuantizationConfig = _config(*(types or (_MX, _MX)), options=options, quant_format=_EXTENDED)
    return made


def _transformer(*types: Any, **settings: Any) -> QuantizationConfig:
    options = {"CalibMovingAverage": True}
    made: QuantizationConfig = _config(*types, options=options, enable_npu_transformer=True, **settings)
    return made


_BFP, _MX = ExtendedQuantType.QBFP, ExtendedQuantType.QMX
_BF16 = ExtendedQuantType.QBFloat16
_INT8, _UINT8, _INT16, _UINT16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16, QuantType.QUInt16
_BFP16 = {"BFPAttributes": {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2}}
_SYMMETRIC = {"ActivationSymmetric": True}
_FORCED_SYMMETRIC = _FORCE | _SYMMETRIC
_ALIGNED = _FORCED_SYMMETRIC | {"AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_POWER_OF_TWO = {"method": PowerOfTwoMethod.MinMSE, "options": _FORCED_SYMMETRIC}
_VINT8 = _SYMMETRIC | {
    "UseRandomData": True,
    "ConvertBNToConv": True,
    "ConvertSigmoidToHardSigmoid": False,
    "ConvertSplitToSlice": True,
    "SplitLargeKernelPool": False,
    "ReplaceClip6Relu": True,
    "ConvertReduceMeanToGlobalAvgPool": False,
    "RemoveQDQConvClip": False,
    "RemoveQDQConvPRelu": False,
    "RemoveQDQConvRelu": False,
    "RemoveQDQConvLeakyRelu": False,
    "Int32Bias": False,
    "DedicatedQDQPair": True,
    "QuantizeAllOpTypes": True,
}

_PLAIN: dict[str, QuantizationConfig] = {
    "XINT8": _config(_UINT8, _INT8, enable_npu_cnn=True, **_POWER_OF_TWO),
    "VINT8": _config(_INT8, _INT8, method=PowerOfTwoMethod.MinMSE, options=_VINT8, optimize_model=False),
    "S8S8_AAWS": _integers(_INT8, _INT8, percentile=99.9999),
    "U8S8_AAWS": _integers(_UINT8, _INT8),
    "U8U8_AAWA": _integers(_UINT8, _UINT8),
    "S16S8_ASWS": _integers(_INT16, _INT8, options=_SYMMETRIC, quant_format=_EXTENDED),
    "U16S8_AAWS": _integers(_UINT16, _INT8, quant_format=_EXTENDED),
    "A8W8": _config(_INT8, _INT8, options=_ALIGNED, quant_format=_EXTENDED),
    "A16W8": _config(_INT16, _INT8, options=_ALIGNED | {"AlignEltwiseQuantType": True}, quant_format=_EXTENDED),
    "FP16": _float(ExtendedQuantType.QFloat16),
    "BF16": _float(_BF16, QuantizeAllOpTypes=True),
    "BFP16": _config(_BFP, _BFP, options=_BFP16, quant_format=_EXTENDED),
    "MX4": _bfp(11),
    "MX6": _bfp(13),
    "MX9": _bfp(16),
    "MXFP8E5M2": _mx("fp8_e5m2"),
    "MXFP8E4M3": _mx("fp8_e4m3"),
    "MXFP6E3M2": _mx("fp6_e3m2"),
    "MXFP6E2M3": _mx("fp6_e2m3"),
    "MXFP4E2M1": _mx("fp4_e2m1"),
    "MXINT8": _mx("int8"),
    "BF16_BFP16": _config(_BF16, _BFP, options=_BFP16, quant_format=_EXTENDED),
    "BF16_MXINT8": _mx("int8", _BF16, _MX),
    "MX9_INT8": _bfp(16, _BFP, _INT8),
    "INT8_CNN_DEFAULT": _config(_UINT8, _INT8, options=_FORCE),
    "INT16_CNN_DEFAULT": _config(_UINT16, _INT16, options=_FORCE, quant_format=_EXTENDED),
    "INT8_TRANSFORMER_DEFAULT": _transformer(_UINT8, _INT8),
    "INT16_TRANSFORMER_DEFAULT": _transformer(_UINT16, _INT16, quant_format=_EXTENDED),
}


_FINETUNE = {"DataSize": 1000, "FixedSeed": 1705472343, "BatchSize": 2, "NumIterations": 1000, "EarlyStop": True}
_ADAROUND_PARAMS = {"OptimAlgorithm": "adaround", **_FINETUNE, "LearningRate": 0.1}
_ADAQUANT_PARAMS = {"OptimAlgorithm": "adaquant", **_FINETUNE, "LearningRate": 1e-5}


def _finetuned(base: str, settings: dict[str, Any]) -> QuantizationConfig:
    made: QuantizationConfig = copy.deepcopy((_PLAIN | _MIXTURES)[base])
    made.include_fast_ft = True
    made.extra_options = {**(made.extra_options or {}), "FastFinetune": dict(settings)}
    return made


def _accurate(base: str) -> QuantizationConfig:
    made = _finetuned(base, _ADAROUND_PARAMS)
    made.calibrate_method = CalibrationMethod.Percentile
    options = {key: value for key, value in (made.extra_options or {}).items() if key != "CalibMovingAverage"}
    made.extra_options = options | {"Percentile": 99.9999}
    return made


def _mix(activation: QTensorConfig, weight: QTensorConfig, bias: QTensorConfig | None = None) -> dict[str, Any]:
    """Layers change as long as the outputs keep a cosine of 0.999 with those of the float model."""
    target = QLayerConfig(input_tensors=activation, weight=weight, bias=bias)
    settings = {"TargetLayerConfig": target, "MetricDefault": "cosine", "MetricThreshold": 0.001}
    return {"AutoMixprecision": settings}


_ADAROUND = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "A8W8", "A16W8", "U16S8_AAWS")
_ADAQUANT = (*_ADAROUND, "FP16", "BF16", "BFP16", "MX4", "MX6", "MX9", *(name for name in _PLAIN if name[:3] == "MXF"))
_N_BITS = {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1}
_BF16_MIXED = {"QuantizeBias": False}
_MIXED = {"include_auto_mp": True, "quant_format": _EXTENDED}
_MIXTURES = {
    "BF16_MIXED_BFP16": _config(_BF16, _BF16, options=_BF16_MIXED | _mix(BFP16Spec(), BFP16Spec()), **_MIXED),
    "BF16_MIXED_MXINT8": _config(_BF16, _BF16, options=_BF16_MIXED | _mix(MXInt8Spec(), MXInt8Spec()), **_MIXED),
}

DEFAULT_CONFIGS: dict[str, QuantizationConfig] = {
    **_PLAIN,
    "UINT8_DYNAMIC_QUANT": QuantizationConfig(weight_type=_UINT8, use_dynamic_quant=True),
    "MATMUL_NBITS": QuantizationConfig(extra_options={"UseMatMulNBits": True, "MatMulNBitsParams": _N_BITS}),
    "S16S16_MIXED_S8S8": _integers(
        _INT16,
        _INT16,
        percentile=99.9999,
        options={"Int32Bias": False, **_mix(Int8Spec(symmetric=False), Int8Spec(), Int8Spec())},
        **_MIXED,
    ),
    **_MIXTURES,
    **{
        f"{kind}_{network}_ACCURATE": _accurate(f"{kind}_{network}_DEFAULT")
        for kind in ("INT8", "INT16")
        for network in ("CNN", "TRANSFORMER")
    },
    **{f"{name}_ADAROUND": _finetuned(name, _ADAROUND_PARAMS) for name in _ADAROUND},
    **{f"{name}_ADAQUANT": _finetuned(name, _ADAQUANT_PARAMS) for name in (*_ADAQUANT, "MXINT8", *_MIXTURES)},
}
"""By name; handed out as copies only."""


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return a copy of a named configuration, to be changed as one likes.

    Args:
        config_name: Its name, such as "XINT8" or "S8S8_AAWS".

    Returns:
        The configuration, for `ModelQuantizer` as it is or in a `Config`.

    Raises:
        RecipeError: There is no such name; the message has the nearest.

    Example:
        >>> get_default_config("XINT8").enable_npu_cnn
        True
    """
    found = DEFAULT_CONFIGS.get(config_name)
    if found is None:
        raise RecipeError(
            f"get_default_config must be given a known name, got {config_name!r}"
            f"{nearest_spelling(str(config_name), DEFAULT_CONFIGS)}; see `quantry presets` for all names"
        )
    preset = PRESETS.get(config_name)
    for pending in preset.pending if preset else ():
        _LOG.info("configuration %s: not yet part of it here: %s", config_name, pending)
    return copy.deepcopy(found)


_ABSENT = ("UINT8_DYNAMIC_QUANT_QCONFIG",)
"""Tensors that are quantized while the model runs have no specification."""
_MOVED = ("FastFinetune", "AutoMixprecision", "ActivationSymmetric", "WeightSymmetric")


def named_config(module: str, name: str) -> QuantizationConfig | QConfig | dict[str, Any]:
    """Return a copy of the configuration that a module's attribute names.

    Args:
        module: The module, for messages.
        name: The attribute.

    Raises:
        AttributeError: There is no such configuration.

    Example:
        >>> named_config("quantry.onnx", "XINT8_CONFIG").enable_npu_cnn
        True
    """
    if name in ("DEFAULT_ADAROUND_PARAMS", "DEFAULT_ADAQUANT_PARAMS"):
        return dict(_ADAROUND_PARAMS if "ROUND" in name else _ADAQUANT_PARAMS)
    for ending, make in (("_QCONFIG", default_qconfig), ("_CONFIG", get_default_config)):
        preset = name.removesuffix(ending)
        if name.endswith(ending) and preset in DEFAULT_CONFIGS and name not in _ABSENT:
            made: QuantizationConfig | QConfig = make(preset)
            return made
    known = [f"{preset}{ending}" for preset in DEFAULT_CONFIGS for ending in ("_QCONFIG", "_CONFIG")]
    hint = nearest_spelling(name, known) if name.endswith("CONFIG") else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def default_qconfig(config_name: str) -> QConfig:
    """Return a named configuration by tensors; it asks for what `get_default_config` of that name asks for.

    As in AMD Quark, AdaQuant trains for 3000 iterations here and for 1000 there.

    Args:
        config_name: Its name, such as "XINT8" or "S8S8_AAWS".

    Raises:
        RecipeError: There is no such name; the message has the nearest.
    """
    config = get_default_config(config_name)
    options = dict(config.extra_options or {})
    algorithms = _algorithms(config, options)
    if not config.optimize_model:
        options["OptimizeModel"] = False
    if config.enable_npu_transformer:
        options |= {"OpTypesToQuantize": ["MatMul", "Gemm"], "MatMulConstBOnly": True}
    layer = QLayerConfig(
        input_tensors=_tensor(config, config.activation_type, options.get("ActivationSymmetric")),
        weight=_tensor(config, config.weight_type, options.get("WeightSymmetric", weight_symmetry(config))),
    )
    rest = {key: value for key, value in options.items() if key not in _MOVED}
    return QConfig(layer, algo_config=algorithms, extra_options=rest)


def weight_symmetry(config: QuantizationConfig) -> bool:
    """Return whether weights are symmetric where no option says it."""
    return spec_of(config.weight_type, "weight_type").dtype.is_signed


def _tensor(config: QuantizationConfig, kind: Any, symmetric: bool | None) -> QTensorConfig:
    dtype = spec_of(kind, "data_type").dtype
    power_of_two = isinstance(config.calibrate_method, PowerOfTwoMethod)
    return QTensorConfig(
        symmetric=not dtype.is_integer if symmetric is None else symmetric,
        scale_type=ScaleType.PowerOf2 if power_of_two else ScaleType.Float32,
        calibration_method=CalibMethod[config.calibrate_method.name] if dtype.is_integer else CalibMethod.MinMax,
        data_type=dtype,
    )


def _algorithms(config: QuantizationConfig, options: dict[str, Any]) -> list[AlgoConfig]:
    found: list[AlgoConfig] = [CLEConfig(cle_total_layer_diff_threshold=2e-7)] if config.include_cle else []
    if config.include_auto_mp:
        found.append(AutoMixprecisionConfig.from_settings(options["AutoMixprecision"]))
    if config.include_fast_ft:
        settings = options["FastFinetune"]
        rounding = settings["OptimAlgorithm"] == "adaround"
        longer = {**settings, "NumIterations": AdaQuantConfig().num_iterations}
        found.append(AdaRoundConfig.from_settings(settings) if rounding else AdaQuantConfig.from_settings(longer))
    return found
