"""Search spaces of AMD Quark's examples and documents, and the named configurations of AutoSearchPro."""

from typing import Any

from quantry.onnx.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantType,
)

Space = dict[str, Any]

_BFP16 = {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2}


def _finetune(algorithm: str, iterations: list[int], rates: list[float], size: int = 200) -> Space:
    return {
        "DataSize": [size],
        "NumIterations": iterations,
        "OptimAlgorithm": [algorithm],
        "LearningRate": rates,
        "OptimDevice": ["cpu"],
        "InferDevice": ["cpu"],
        "EarlyStop": [False],
    }


def _generic(finetune: Space | None = None) -> Space:
    more = {} if finetune is None else {"FastFinetune": finetune}
    return {
        "calibrate_method": [
            CalibrationMethod.MinMax,
            CalibrationMethod.Percentile,
            LayerWiseMethod.LayerWisePercentile,
        ],
        "activation_type": [QuantType.QInt8, QuantType.QInt16],
        "weight_type": [QuantType.QInt8],
        "include_cle": [False] if finetune is None else [False, True],
        "include_fast_ft": [False] if finetune is None else [False, True],
        "extra_options": {
            "ActivationSymmetric": [True, False],
            "WeightSymmetric": [True],
            "CalibMovingAverage": [False, True],
            "CalibMovingAverageConstant": [0.01],
            **more,
        },
    }


def _xint8(finetune: Space | None = None, *, device: str | None = None) -> Space:
    options: Space = {"ActivationSymmetric": [True], "WeightSymmetric": [True]}
    if finetune is not None:
        options["FastFinetune"] = finetune
    if device is not None:
        options["FastFinetune"] = {"OptimDevice": [device], "InferDevice": [device]}
    tuned = finetune is not None or device is not None
    return {
        "calibrate_method": [PowerOfTwoMethod.MinMSE],
        "activation_type": [QuantType.QUInt8] if device else [QuantType.QUInt8, QuantType.QInt8],
        "weight_type": [QuantType.QInt8],
        "enable_npu_cnn": [True],
        "include_cle": [False, True] if tuned else [False],
        "include_fast_ft": [True] if device else ([False, True] if finetune else [False]),
        "extra_options": options,
    }


def _extended(kind: ExtendedQuantType, finetune: Space | None = None) -> Space:
    options: Space = {"BFPAttributes": [_BFP16]} if kind is ExtendedQuantType.QBFP else {}
    if finetune is not None:
        options["FastFinetune"] = finetune
    return {
        "calibrate_method": [CalibrationMethod.MinMax],
        "activation_type": [kind],
        "weight_type": [kind],
        "quant_format": [ExtendedQuantFormat.QDQ],
        "include_cle": [False],
        "include_fast_ft": [False] if finetune is None else [True],
        "extra_options": options,
    }


_ADAROUND = _finetune("adaround", [1000, 5000, 10000], [0.1, 0.01])
_ADAQUANT = _finetune("adaquant", [1000, 5000, 10000], [1e-5, 1e-6])
_ADAQUANT_FLOAT = _finetune("adaquant", [1000], [1e-5], 1000) | {"BatchSize": [2]}

SPACES: dict[str, Space] = {
    "search_space": _generic(),
    "search_space_advanced": _generic(_ADAROUND),
    "search_space_advanced2": _generic(_ADAQUANT),
    "search_space_XINT8": _xint8(),
    "search_space_XINT8_advanced": _xint8(_finetune("adaround", [1000], [0.1])),
    "search_space_XINT8_advanced2": _xint8(_finetune("adaquant", [5000], [1e-5])),
    "search_space_bf16": _extended(ExtendedQuantType.QBFloat16),
    "search_space_bf16_advanced": _extended(ExtendedQuantType.QBFloat16, _ADAQUANT_FLOAT),
    "search_space_bfp16": _extended(ExtendedQuantType.QBFP),
    "search_space_bfp16_advanced": _extended(ExtendedQuantType.QBFP, _ADAQUANT_FLOAT),
    "search_space_with_GPU": _xint8(device="cuda:0"),
}
"""Spaces by the name of their attribute in `AutoSearchConfig_Default`."""


def default_space() -> Space:
    """Return the default search space, that of AMD Quark 0.13."""
    switch = [False, True]
    return {
        "calibrate_method": [
            PowerOfTwoMethod.MinMSE,
            PowerOfTwoMethod.NonOverflow,
            CalibrationMethod.MinMax,
            CalibrationMethod.Entropy,
            CalibrationMethod.Percentile,
            LayerWiseMethod.LayerWisePercentile,
        ],
        "activation_type": [QuantType.QInt8, QuantType.QInt16],
        "weight_type": [QuantType.QInt8, QuantType.QInt16],
        "include_cle": [True, False],
        "include_auto_mp": switch,
        "include_fast_ft": switch,
        "include_sq": switch,
        "extra_options": {
            "ActivationSymmetric": [True, False],
            "WeightSymmetric": [True, False],
            "CalibMovingAverage": [True, False],
            "CalibMovingAverageConstant": [0.01, 0.001],
            "Percentile": [99.99, 99.999],
            "SmoothAlpha": [0.5, 0.6],
            "FastFinetune": {
                "DataSize": [500, 1000],
                "NumIterations": [100, 1000],
                "OptimAlgorithm": ["adaround", "adaquant"],
                "LearningRate": [0.01, 0.001, 0.0001],
                "FixedSeed": [42],
            },
        },
    }


_MANY_ITERATIONS = {"type": "int", "low": 3000, "high": 20000, "step": 1000}


def _adaround_params(iterations: dict[str, Any]) -> dict[str, Any]:
    return {
        "only_if": {"algorithms": "adaround"},
        "num_iterations": iterations,
        "learning_rate": {"type": "float", "low": 1e-2, "high": 1e-1, "log": True},
    }


def _adaquant_params(iterations: dict[str, Any]) -> dict[str, Any]:
    return {
        "only_if": {"algorithms": "adaquant"},
        "num_iterations": iterations,
        "learning_rate": {"type": "float", "low": 1e-6, "high": 1e-4, "log": True},
    }


def _pro_search(activation: str, weight: str, **space: Any) -> dict[str, Any]:
    return {
        "search_space": {
            "activation": [activation],
            "weight": [weight],
            "cle_algo": [True, None],
            "cle_params": {"only_if": "cle_algo", "cle_steps": [1, -1]},
            "algorithms": ["adaround", "adaquant"],
            "adaround_params": _adaround_params(_MANY_ITERATIONS),
            "adaquant_params": _adaquant_params(_MANY_ITERATIONS),
            **space,
        },
        "n_trials": 20,
        "n_jobs": 1,
        "search_algo": "TPE",
        "search_metric": "L2",
        "two_stage_search": True,
    }


_PRO_METHODS = [CalibMethod.MinMax, CalibMethod.Percentile, CalibMethod.LayerwisePercentile]
_PRO_INTEGERS: dict[str, Any] = {
    "activation_params": {"symmetric": [True, False], "calibration_method": _PRO_METHODS},
    "weight_params": {"calibration_method": [CalibMethod.MinMax, CalibMethod.MinMSE]},
}

PRESETS: dict[str, dict[str, Any]] = {
    "XINT8_SEARCH": _pro_search("XInt8", "XInt8"),
    "A8W8_SEARCH": _pro_search("Int8", "Int8", **_PRO_INTEGERS),
    "A16W8_SEARCH": _pro_search("Int16", "Int8", **_PRO_INTEGERS),
    "ADVANCED_SEARCH": _pro_search(
        "Int8",
        "Int8",
        **_PRO_INTEGERS,
        adaround_params=_adaround_params({**_MANY_ITERATIONS, "high": 30000}),
        adaquant_params=_adaquant_params({**_MANY_ITERATIONS, "high": 30000}),
    ),
}
"""Named configurations of AutoSearchPro; `get_auto_search_config` returns copies."""
