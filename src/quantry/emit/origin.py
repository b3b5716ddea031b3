"""Where the data of an initializer come from."""

from enum import Enum
from typing import NamedTuple


class Part(Enum):
    """What an initializer holds of a quantized tensor."""

    SCALE = "scale"
    ZERO_POINT = "zero_point"
    INTEGERS = "integers"


class Origin(NamedTuple):
    """The parameters that an initializer was made of.

    Attributes:
        part: What it holds.
        tensor: Name of the tensor, as in `QuantParams.tensors`; of integers, also that of the float initializer.
    """

    part: Part
    tensor: str
