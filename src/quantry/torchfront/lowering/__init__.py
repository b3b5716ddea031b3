"""Lowering: turns a captured torch graph into the float ONNX model that the stages work on.

torch decomposes the captured operators, and its ONNX exporter (torchlib of onnxscript) translates them, so every model
that ``torch.onnx.export(dynamo=True)`` exports can be lowered. What we add is in three files: `exported_program` finds
the program of a captured graph, `translation` calls the exporter and explains failures, and `tidy` removes what the
exporter leaves, keeps parameters recognizable and gives nodes the names of the user's modules.
"""

from quantry.torchfront.lowering.lowered import Lowered, lower
from quantry.torchfront.lowering.scopes import Scope

__all__ = ["Lowered", "Scope", "lower"]
