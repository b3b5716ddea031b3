"""The observers of Quark for PyTorch: names that choose a calibration method.

They hold no data: activations are observed once for all methods, by the stages that serve ONNX models too.
"""

from dataclasses import dataclass

from quantry.recipe import Method, MinMax, MinMSE, Percentile
from quantry.recipe.checked import KnownArguments
from quantry.torch.enums import QSchemeType


@dataclass(frozen=True)
class TQTSpec(KnownArguments):
    """Asks for scales that training learns by their logarithm (https://arxiv.org/abs/1903.08066)."""


@dataclass(frozen=True)
class LSQSpec(KnownArguments):
    """Asks for scales that training learns themselves (https://arxiv.org/abs/1902.08153)."""


class ObserverBase:
    """What all observers say.

    Attributes:
        scheme: How many scales the tensor has; None fits any.
        power_of_two: Whether the scale is a power of two whatever the specification says.
        method: The calibration method.
        learned: Whether training learns the scale: "tqt", "lsq" or empty.
        refusal: Why it cannot be used; empty where it can.
    """

    scheme: QSchemeType | None = QSchemeType.per_tensor
    power_of_two: bool = False
    method: Method = MinMax()
    learned: str = ""
    refusal: str = ""


class PlaceholderObserver(ObserverBase):
    """Needs no data: for types without a scale."""

    scheme = None


class PerTensorMinMaxObserver(ObserverBase):
    """The smallest and the largest value."""


class PerChannelMinMaxObserver(ObserverBase):
    """The smallest and the largest value of each channel."""

    scheme = QSchemeType.per_channel


class PerTensorHistogramObserver(ObserverBase):
    """The range with the least squared error over the histogram."""

    method = MinMSE()


class PerTensorHistogramObserverPro(PerTensorHistogramObserver):
    """The same as `PerTensorHistogramObserver`: the histogram here is fine and exact from the start."""


class PerTensorMSEObserver(ObserverBase):
    """The range with the least squared error."""

    method = MinMSE()


class PerTensorPercentileObserver(ObserverBase):
    """All but the rarest largest values."""

    method = Percentile(99.99999999)


class PerTensorPowOf2MinMaxObserver(ObserverBase):
    """The power of two next to the scale of the extremes."""

    power_of_two = True


class PerTensorPowOf2MinMSEObserver(ObserverBase):
    """The power of two with the least squared error."""

    power_of_two = True
    method = MinMSE()


class PerChannelPowOf2MinMaxObserver(PerTensorPowOf2MinMaxObserver):
    """The power of two next to the scale of the extremes, for each channel."""

    scheme = QSchemeType.per_channel


class PerChannelPowOf2MinMSEObserver(PerTensorPowOf2MinMSEObserver):
    """The power of two with the least squared error, for each channel."""

    scheme = QSchemeType.per_channel


class LSQObserver(ObserverBase):
    """A scale that training learns; it starts at the least squared error."""

    scheme = None
    method = MinMSE()
    learned = "lsq"


class TQTObserver(ObserverBase):
    """A power-of-two scale that training learns; it starts at the least squared error."""

    scheme = None
    power_of_two = True
    method = MinMSE()
    learned = "tqt"


class PerGroupMinMaxObserver(ObserverBase):
    """Known, and refused."""

    scheme = QSchemeType.per_group
    refusal = "integer runtimes multiply with one scale for a channel or a tensor; use PerChannelMinMaxObserver"


class PerBlockMXObserver(ObserverBase):
    """Known, and refused."""

    scheme = QSchemeType.per_block
    refusal = "block formats are found at run time and need no observer here; use quantry.onnx with MX types"


class PerBlockBFPObserver(PerBlockMXObserver):
    """Known, and refused."""
