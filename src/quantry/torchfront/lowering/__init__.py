"""Lowering: a captured torch graph becomes the float ONNX model that the stages work on.

Own, rather than torch's exporter: it is fast, needs no further package, writes no casts, identities or shape chains,
and keeps the names of the user's modules and parameters, which training needs to find its way back. One function for
each operator, in tables by family.
"""

from quantry.torchfront.lowering.graph import LOWERINGS, Lowered, Scope, lower

__all__ = ["LOWERINGS", "Lowered", "Scope", "lower"]
