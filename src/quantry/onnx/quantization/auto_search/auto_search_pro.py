"""``AutoSearchPro``, where AMD Quark 0.13 has it."""

from quantry.onnx.auto_search import AutoSearchPro, get_auto_search_config

__all__ = ["AutoSearchPro", "get_auto_search_config"]
