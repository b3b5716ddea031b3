"""Configurations of searches under the names of AMD Quark."""

# ruff: noqa: N815, RUF012  attributes are named as there, and users assign to them

import copy
from typing import Any

from quantry.onnx.auto_search.predefined_spaces import SPACES
from quantry.onnx.auto_search.settings import Settings

_DEFAULTS = Settings()


class AutoSearchConfig:
    """What a search is asked for; use the class, an instance, a subclass or any object with such attributes.

    A search reads it and never writes to it. `quantry.onnx.auto_search.settings.Settings` says what each attribute
    means.

    Example:
        >>> config = AutoSearchConfig()
        >>> config.search_metric = "cos"
        >>> config.search_metric_tolerance = 0.01
    """

    search_space: dict[str, Any] = copy.deepcopy(dict(_DEFAULTS.search_space))
    search_metric: str = _DEFAULTS.search_metric
    search_algo: str = _DEFAULTS.search_algo
    search_evaluator: Any = None
    search_metric_tolerance: float | str = 2e4
    search_cache_dir: str | None = None
    search_output_dir: str = "./"
    search_log_path: str | None = None
    search_stop_condition: dict[str, Any] = dict(_DEFAULTS.search_stop_condition)
    two_stage_search: bool = False
    advanced_fastft_search: bool = False
    advanced_fastft_params: dict[str, Any] = dict(_DEFAULTS.advanced_fastft_params)
    n_jobs: int = 1
    search_devices: str = "cpu"
    search_racing: bool = False
    search_seed: int = 0
    search_trial_timeout: float | None = None


class AutoSearchConfig_Default(AutoSearchConfig):  # noqa: N801  the name in AMD Quark's examples
    """The configuration of AMD Quark's examples, with all of its predefined spaces.

    The first candidate within tolerance ends the search. Finetuning runs on the CPU; ``search_space_with_GPU`` has the
    one that does not.
    """

    search_space: dict[str, Any] = copy.deepcopy(SPACES["search_space"])
    search_space_advanced: dict[str, Any] = copy.deepcopy(SPACES["search_space_advanced"])
    search_space_advanced2: dict[str, Any] = copy.deepcopy(SPACES["search_space_advanced2"])
    search_space_XINT8: dict[str, Any] = copy.deepcopy(SPACES["search_space_XINT8"])
    search_space_XINT8_advanced: dict[str, Any] = copy.deepcopy(SPACES["search_space_XINT8_advanced"])
    search_space_XINT8_advanced2: dict[str, Any] = copy.deepcopy(SPACES["search_space_XINT8_advanced2"])
    search_space_bf16: dict[str, Any] = copy.deepcopy(SPACES["search_space_bf16"])
    search_space_bf16_advanced: dict[str, Any] = copy.deepcopy(SPACES["search_space_bf16_advanced"])
    search_space_bfp16: dict[str, Any] = copy.deepcopy(SPACES["search_space_bfp16"])
    search_space_bfp16_advanced: dict[str, Any] = copy.deepcopy(SPACES["search_space_bfp16_advanced"])
    search_space_with_GPU: dict[str, Any] = copy.deepcopy(SPACES["search_space_with_GPU"])
    search_metric: str = "L2"
    search_algo: str = "grid_search"
    search_metric_tolerance: float | str = 0.60001
    search_stop_condition: dict[str, Any] = {
        "find_n_candidates": 1,
        "find_best_candidate": -1,
        "iteration_limit": 10_000,
        "time_limit": 1_000_000.0,
    }
