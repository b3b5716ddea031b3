"""AMD Quark's named configurations, derived from the presets of `quantry.recipe`.

Each is available in three forms: ``get_default_config("XINT8")``, and as attributes of modules ``XINT8_CONFIG`` and, by
tensors, ``XINT8_QCONFIG``. Scripts edit what they get, so every access returns a new copy. What AMD's configuration
does and quantry does not yet do is in `quantry.recipe.Preset.pending` and is logged.
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.facts.operators import FUSIBLE, MATRIX_PRODUCTS
from quantry.onnx.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig, AutoMixprecisionConfig, CLEConfig
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedQuantFormat,
    PowerOfTwoMethod,
    QuantFormat,
    ScaleType,
    spec_of,
    type_of,
)
from quantry.onnx.options.recipe_draft import own_bias_spec
from quantry.onnx.options.types import block_attributes
from quantry.onnx.qconfig import QConfig
from quantry.onnx.specs import QLayerConfig, QTensorConfig, spec_class
from quantry.recipe import (
    PRESETS,
    AdaRound,
    Dynamic,
    FloatBias,
    LayerTraining,
    MatMulNBits,
    MinMax,
    MixedPrecision,
    OwnBias,
    Percentile,
    PerGroup,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
    VitisQdq,
    WithinError,
)

_LOG = logging.getLogger("quantry")

# What AMD's configurations of these names also set. It has no effect on the recipe here, except in VINT8: AMD keeps
# BatchNormalization as a convolution and replaces Clip(0, 6) during equalization instead of before it.
_ALSO: dict[str, dict[str, Any]] = {
    "A8W8": {"AlignSlice": False, "FoldRelu": True},
    "A16W8": {"AlignSlice": False, "FoldRelu": True, "AlignEltwiseQuantType": True},
    "VINT8": {
        "UseRandomData": True,
        "ConvertBNToConv": True,
        "ConvertSigmoidToHardSigmoid": False,
        "ConvertSplitToSlice": True,
        "SplitLargeKernelPool": False,
        "ReplaceClip6Relu": True,
        "ConvertReduceMeanToGlobalAvgPool": False,
    },
}


def _config_of(recipe: Recipe) -> QuantizationConfig:
    """Return a preset in AMD Quark's terms."""
    plan, scale = recipe.plan, recipe.scale
    base = recipe.name.removesuffix("_ADAROUND").removesuffix("_ADAQUANT")
    if isinstance(recipe.emit.format, MatMulNBits):
        return QuantizationConfig(extra_options=_n_bits_options(plan.weight, recipe.emit.format))
    dynamic = isinstance(recipe.emit.format, Dynamic)
    return QuantizationConfig(
        calibrate_method=_method(plan, scale),
        quant_format=ExtendedQuantFormat.QDQ if _is_extended(recipe) else QuantFormat.QDQ,
        activation_type=type_of(plan.activation.dtype),
        weight_type=type_of(plan.weight.dtype),
        optimize_model=base != "VINT8",
        use_dynamic_quant=dynamic,
        include_cle=recipe.equalize.cross_layer is not None,
        include_auto_mp=recipe.mix.mixed is not None,
        include_fast_ft=bool(recipe.tune.steps),
        enable_npu_cnn=scale.npu is not None,
        enable_npu_transformer=plan.constant_right_operand_only,
        extra_options={} if dynamic else {**_options(recipe), **_ALSO.get(base, {})},
    )


def _is_extended(recipe: Recipe) -> bool:
    """Return whether AMD's configuration has the extended format: all but 8-bit integers, and A8W8."""
    wide = any(spec.dtype.bits > 8 for spec in (recipe.plan.activation, recipe.plan.weight))
    return wide or isinstance(recipe.emit.format, VitisQdq) or recipe.name.startswith("A8W8")


def _method(plan: PlanOptions, scale: ScaleOptions) -> PowerOfTwoMethod | CalibrationMethod:
    if isinstance(plan.weight.scale, PowerOfTwoScale):
        return PowerOfTwoMethod.MinMSE
    return CalibrationMethod.Percentile if isinstance(scale.activation, Percentile) else CalibrationMethod.MinMax


def _options(recipe: Recipe) -> dict[str, Any]:
    """Return the ``extra_options`` that differ from their defaults."""
    plan, scale = recipe.plan, recipe.scale
    options = {
        "ForceQuantizeNoInputCheck": plan.force_pass_through,
        "ActivationSymmetric": plan.activation.symmetric and plan.activation.dtype.is_integer,
        "QuantizeAllOpTypes": plan.every_operator,
        "DedicatedQDQPair": recipe.emit.dedicated_pairs,
        "AlignConcat": "Concat" in scale.align,
        "CalibMovingAverage": isinstance(scale.activation, MinMax) and scale.activation.moving_average is not None,
    }
    extra_options: dict[str, Any] = {key: True for key, is_set in options.items() if is_set}
    if scale.activation != Percentile() and isinstance(scale.activation, Percentile):
        extra_options["Percentile"] = scale.activation.percentile
    if not plan.fused_activations:
        extra_options |= {f"RemoveQDQConv{operator}": False for operator in FUSIBLE}
    if isinstance(plan.bias, FloatBias):
        extra_options["QuantizeBias"] = False
    has_own_bias = isinstance(plan.bias, OwnBias) and plan.weight.dtype.is_integer and scale.npu is None
    if has_own_bias and plan.bias == OwnBias(own_bias_spec(plan.weight)):
        extra_options["Int32Bias"] = False
    for spec in (plan.activation, plan.weight):
        extra_options |= block_attributes(spec.dtype)
    if recipe.mix.mixed is not None:
        extra_options["AutoMixprecision"] = _mix_settings(recipe.mix.mixed)
    for step in recipe.tune.steps:
        assert isinstance(step, LayerTraining)
        extra_options["FastFinetune"] = _finetune_settings(step)
    return extra_options


def _n_bits_options(weight: TensorSpec, emitted: MatMulNBits) -> dict[str, Any]:
    assert isinstance(weight.granularity, PerGroup)
    settings = {"GroupSize": weight.granularity.size, "Symmetric": weight.symmetric, "Bits": weight.dtype.bits}
    return {"UseMatMulNBits": True, "MatMulNBitsParams": {**settings, "AccuracyLevel": emitted.accuracy_level}}


def _finetune_settings(step: LayerTraining) -> dict[str, Any]:
    return {
        "OptimAlgorithm": "adaround" if isinstance(step, AdaRound) else "adaquant",
        "DataSize": step.samples,
        "FixedSeed": step.seed,
        "BatchSize": step.batch_size,
        "NumIterations": step.iterations,
        "EarlyStop": step.early_stop,
        "LearningRate": step.learning_rate,
    }


def _mix_settings(mixed: MixedPrecision) -> dict[str, Any]:
    (target,), goal = mixed.targets, mixed.goal
    assert isinstance(goal, WithinError)
    layer = QLayerConfig(
        input_tensors=_target(target.activation),
        weight=_target(target.weight),
        bias=_target(target.bias.spec) if isinstance(target.bias, OwnBias) else None,
    )
    # AMD's threshold is a distance: 1 - cosine.
    return {"TargetLayerConfig": layer, "MetricDefault": goal.metric, "MetricThreshold": round(1 - goal.limit, 9)}


def _target(spec: TensorSpec | None) -> QTensorConfig | None:
    return None if spec is None else spec_class(spec.dtype)(symmetric=spec.symmetric)


DEFAULT_CONFIGS: dict[str, QuantizationConfig] = {
    name: _config_of(preset.recipe) for name, preset in PRESETS.items() if preset.in_quark
}
"""By name; only copies are handed out."""


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return a copy of a named configuration; change it as you like.

    Args:
        config_name: Its name, such as "XINT8" or "S8S8_AAWS".

    Returns:
        The configuration, for `ModelQuantizer` as it is or in a `Config`.

    Raises:
        RecipeError: There is no such name; the message suggests the nearest spelling.

    Example:
        >>> get_default_config("XINT8").enable_npu_cnn
        True
    """
    config = DEFAULT_CONFIGS.get(config_name)
    if config is None:
        raise RecipeError(
            f"get_default_config must be given a known name, got {config_name!r}"
            f"{nearest_spelling(str(config_name), DEFAULT_CONFIGS)}; see `quantry presets` for all names"
        )
    for pending in PRESETS[config_name].pending:
        _LOG.info("configuration %s: not yet supported: %s", config_name, pending)
    return copy.deepcopy(config)


class _Copies(Mapping[str, QuantizationConfig]):
    """The named configurations; each access returns a new copy."""

    def __getitem__(self, name: str) -> QuantizationConfig:
        if name not in DEFAULT_CONFIGS:
            raise KeyError(name)
        return get_default_config(name)

    def __iter__(self) -> Iterator[str]:
        return iter(DEFAULT_CONFIGS)

    def __len__(self) -> int:
        return len(DEFAULT_CONFIGS)


DefaultConfigMapping: Mapping[str, QuantizationConfig] = _Copies()
"""Every named configuration by name; each access returns a new copy."""


def get_default_config_mapping() -> Mapping[str, QuantizationConfig]:
    """Return every named configuration by name; each access returns a new copy."""
    return DefaultConfigMapping


_ABSENT = ("UINT8_DYNAMIC_QUANT_QCONFIG",)
"""Tensors that are quantized at run time have no specification."""
_MOVED = ("FastFinetune", "AutoMixprecision", "ActivationSymmetric", "WeightSymmetric")
"""Options that a `QConfig` has as specifications or algorithms instead."""
_FINETUNE_PARAMS = {"DEFAULT_ADAROUND_PARAMS": "XINT8_ADAROUND", "DEFAULT_ADAQUANT_PARAMS": "XINT8_ADAQUANT"}


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
    if name in _FINETUNE_PARAMS:
        options: dict[str, Any] = DEFAULT_CONFIGS[_FINETUNE_PARAMS[name]].extra_options or {}
        return dict(options["FastFinetune"])
    for ending, make in (("_QCONFIG", default_qconfig), ("_CONFIG", get_default_config)):
        preset = name.removesuffix(ending)
        if name.endswith(ending) and preset in DEFAULT_CONFIGS and name not in _ABSENT:
            config: QuantizationConfig | QConfig = make(preset)
            return config
    names = [f"{preset}{ending}" for preset in DEFAULT_CONFIGS for ending in ("_QCONFIG", "_CONFIG")]
    hint = nearest_spelling(name, names) if name.endswith("CONFIG") else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def default_qconfig(config_name: str) -> QConfig:
    """Return a named configuration by tensors; it means the same as `get_default_config` of that name.

    As in AMD Quark, AdaQuant trains for 3000 iterations here and for 1000 there.

    Args:
        config_name: Its name, such as "XINT8" or "S8S8_AAWS".

    Raises:
        RecipeError: There is no such name; the message suggests the nearest spelling.
    """
    config = get_default_config(config_name)
    options = dict(config.extra_options or {})
    algorithms = _algorithms(config, options)
    if not config.optimize_model:
        options["OptimizeModel"] = False
    if config.enable_npu_transformer:
        options |= {"OpTypesToQuantize": [*MATRIX_PRODUCTS], "MatMulConstBOnly": True}
    symmetric = spec_of(config.weight_type, "weight_type").dtype.is_signed
    layer = QLayerConfig(
        input_tensors=_tensor(config, config.activation_type, options.get("ActivationSymmetric")),
        weight=_tensor(config, config.weight_type, options.get("WeightSymmetric", symmetric)),
    )
    remaining = {key: value for key, value in options.items() if key not in _MOVED}
    return QConfig(layer, algo_config=algorithms, extra_options=remaining)


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
    algorithms: list[AlgoConfig] = [CLEConfig(cle_total_layer_diff_threshold=2e-7)] if config.include_cle else []
    if config.include_auto_mp:
        algorithms.append(AutoMixprecisionConfig.from_settings(options["AutoMixprecision"]))
    if config.include_fast_ft:
        settings = options["FastFinetune"]
        rounding = settings["OptimAlgorithm"] == "adaround"
        longer = {**settings, "NumIterations": AdaQuantConfig().num_iterations}
        algorithms.append(AdaRoundConfig.from_settings(settings) if rounding else AdaQuantConfig.from_settings(longer))
    return algorithms
