"""Knows no quantization: C functions that are compiled where a compiler is found, each with a twin in Python."""

from quantry.native.library import SWITCH, library

__all__ = ["SWITCH", "library"]
