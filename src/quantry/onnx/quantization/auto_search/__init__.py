"""Automatic search, where AMD Quark 0.13 has it."""

from quantry.onnx.auto_search import AutoSearch, AutoSearchPro, SearchSpace

__all__ = ["AutoSearch", "AutoSearchPro", "SearchSpace"]
