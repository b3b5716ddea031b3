"""ONNX operators in torch: what the training graph is made of.

One function for each operator, in tables by family; to add one, write it and name it in its family's ``OPERATORS``.
Attributes and constant inputs such as axes and shapes are bound when the graph is built, so that a training step reads
no tensor back from the device and ``torch.compile`` sees plain numbers. Operators without an entry are computed by the
interpreter of the tune stage, which reads them at every call.
"""

from collections.abc import Mapping

from quantry.torchfront.operators import elementwise, movement, neighbourhoods, products
from quantry.torchfront.operators.operator_entry import OperatorEntry

OPERATORS: Mapping[str, OperatorEntry] = {
    **products.OPERATORS,
    **elementwise.OPERATORS,
    **movement.OPERATORS,
    **neighbourhoods.OPERATORS,
}

__all__ = ["OPERATORS", "OperatorEntry"]
