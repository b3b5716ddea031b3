"""Named configurations as objects of modules: ``XINT8_CONFIG`` and, by tensors, ``XINT8_QCONFIG``.

Scripts import these and edit them, so every access hands out a new copy.
"""

from typing import Any

from quantry.errors import nearest_spelling
from quantry.onnx.enums import CalibMethod, PowerOfTwoMethod, ScaleType
from quantry.onnx.quantization.config.algorithm import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
)
from quantry.onnx.quantization.config.config import QuantizationConfig
from quantry.onnx.quantization.config.custom_config import DEFAULT_CONFIGS, get_default_config
from quantry.onnx.quantization.config.qconfig import QConfig
from quantry.onnx.quantization.config.spec import QLayerConfig, QTensorConfig
from quantry.onnx.type_specs import spec_of

_ABSENT = ("UINT8_DYNAMIC_QUANT_QCONFIG",)
"""Tensors that are quantized while the model runs have no specification."""
_MOVED = ("FastFinetune", "AutoMixprecision", "ActivationSymmetric", "WeightSymmetric")


def named_config(module: str, name: str) -> QuantizationConfig | QConfig:
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
