"""Translate quantized models between dialects, or to standard operators."""

from quantry.convert.translate import Target, translate

__all__ = ["Target", "translate"]
