"""Named configurations of AutoSearchPro."""

from typing import Any

from quantry.onnx.enums import CalibMethod

_LARGE = {"type": "int", "low": 3000, "high": 20000, "step": 1000}


def _adaround(iterations: dict[str, Any]) -> dict[str, Any]:
    return {
        "only_if": {"algorithms": "adaround"},
        "num_iterations": iterations,
        "learning_rate": {"type": "float", "low": 1e-2, "high": 1e-1, "log": True},
    }


def _adaquant(iterations: dict[str, Any]) -> dict[str, Any]:
    return {
        "only_if": {"algorithms": "adaquant"},
        "num_iterations": iterations,
        "learning_rate": {"type": "float", "low": 1e-6, "high": 1e-4, "log": True},
    }


def _search(activation: str, weight: str, **space: Any) -> dict[str, Any]:
    return {
        "search_space": {
            "activation": [activation],
            "weight": [weight],
            "cle_algo": [True, None],
            "cle_params": {"only_if": "cle_algo", "cle_steps": [1, -1]},
            "algorithms": ["adaround", "adaquant"],
            "adaround_params": _adaround(_LARGE),
            "adaquant_params": _adaquant(_LARGE),
            **space,
        },
        "n_trials": 20,
        "n_jobs": 1,
        "search_algo": "TPE",
        "search_metric": "L2",
        "two_stage_search": True,
    }


_METHODS = [CalibMethod.MinMax, CalibMethod.Percentile, CalibMethod.LayerwisePercentile]
_INTEGERS: dict[str, Any] = {
    "activation_params": {"symmetric": [True, False], "calibration_method": _METHODS},
    "weight_params": {"calibration_method": [CalibMethod.MinMax, CalibMethod.MinMSE]},
}

PRESETS: dict[str, dict[str, Any]] = {
    "XINT8_SEARCH": _search("XInt8", "XInt8"),
    "A8W8_SEARCH": _search("Int8", "Int8", **_INTEGERS),
    "A16W8_SEARCH": _search("Int16", "Int8", **_INTEGERS),
    "ADVANCED_SEARCH": _search(
        "Int8",
        "Int8",
        **_INTEGERS,
        adaround_params=_adaround({**_LARGE, "high": 30000}),
        adaquant_params=_adaquant({**_LARGE, "high": 30000}),
    ),
}
"""By name; handed out as copies only."""
