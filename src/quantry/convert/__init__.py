"""Translate quantized models between dialects, or to standard operators."""

from quantry.convert.translate import QdqDialect, translate

__all__ = ["QdqDialect", "translate"]
