"""Our torch interpreter of ONNX operators; it imports torch, so it is imported inside functions only.

To add an operator: write its function in the file of its family and name it in that file's table.
"""

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.operators import OPERATORS, interpretable

__all__ = ["OPERATORS", "Attributes", "interpretable"]
