"""Lowering: turns a captured torch graph into the float ONNX model that the stages work on.

We do not use torch's exporter: this one is fast, needs no further package, writes no redundant casts, identities or
shape computations, and keeps the names of the user's modules and parameters, which training needs. There is one
function per operator, in tables by family.
"""

from quantry.torchfront.lowering.graph import LOWERINGS, Lowered, Scope, lower

__all__ = ["LOWERINGS", "Lowered", "Scope", "lower"]
