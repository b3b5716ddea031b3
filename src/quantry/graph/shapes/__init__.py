"""Shapes as expressions of the inputs' named axes, for cases that ONNX's inference does not solve."""

from quantry.graph.shapes.known_values import KnownValues, numbers_of
from quantry.graph.shapes.size import Size
from quantry.graph.shapes.solve_shapes import solve_shapes

__all__ = ["KnownValues", "Size", "numbers_of", "solve_shapes"]
