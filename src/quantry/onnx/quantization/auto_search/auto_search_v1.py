"""``AutoSearch`` and its configuration, where AMD Quark 0.13 has them."""

from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig, AutoSearchConfig_Default

__all__ = ["AutoSearch", "AutoSearchConfig", "AutoSearchConfig_Default"]
