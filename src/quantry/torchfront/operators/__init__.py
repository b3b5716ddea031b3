"""ONNX operators in torch: what the training graph is made of.

One function for each operator, in tables by family; to add one, write it and name it in its family's ``OPERATORS``.
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
