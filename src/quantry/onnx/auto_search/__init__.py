"""Automatic search under AMD Quark's names: ``quark.onnx.auto_search``."""

from quantry.onnx.auto_search.auto_search import AutoSearch
from quantry.onnx.auto_search.config import AutoSearchConfig, AutoSearchConfig_Default
from quantry.onnx.auto_search.predefined_spaces import PRESETS as AUTO_SEARCH_CONFIGS
from quantry.onnx.auto_search.pro import AutoSearchPro, get_auto_search_config
from quantry.onnx.auto_search.search_space import SearchSpace, generate_all_configs

__all__ = [
    "AUTO_SEARCH_CONFIGS",
    "AutoSearch",
    "AutoSearchConfig",
    "AutoSearchConfig_Default",
    "AutoSearchPro",
    "SearchSpace",
    "generate_all_configs",
    "get_auto_search_config",
]
