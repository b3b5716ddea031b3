"""Translates quantized models between dialects, or to standard operators."""

from quantry.convert.target import Target
from quantry.convert.translate import translate

__all__ = ["Target", "translate"]
