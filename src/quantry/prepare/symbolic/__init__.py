"""Shapes as expressions of the inputs' named axes, where ONNX's own inference gives up."""

from quantry.prepare.symbolic.known_values import KnownValues, numbers_of
from quantry.prepare.symbolic.size import Size
from quantry.prepare.symbolic.solve_shapes import solve_shapes

__all__ = ["KnownValues", "Size", "numbers_of", "solve_shapes"]
