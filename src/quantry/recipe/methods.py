"""Calibration methods: how observed values become the range a tensor can represent.

The type is the choice and its fields are the method's options, so ``Percentile(99.99)`` both selects and configures.
"""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class MinMax(Checked):
    """The smallest and the largest value seen.

    Attributes:
        moving_average: None takes the extremes of all batches. A constant ``c`` in [0, 1) averages the extremes of the
            batches with weights proportional to ``(1 - c)**age``, where the newest batch has age 0; 0 is the plain
            mean.
    """

    moving_average: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moving_average is not None and not 0 <= self.moving_average < 1:
            raise RecipeError(f"MinMax.moving_average must be in [0, 1), got {self.moving_average!r}")


@dataclass(frozen=True)
class Percentile(Checked):
    """Cuts the rare largest values off.

    Attributes:
        percentile: How many percent of the values stay inside the range, 50 to 100.
        symmetric: True keeps ``|x|`` below one threshold, the onnxruntime and AMD Quark default; False cuts half of the
            remainder off at either end.
    """

    percentile: float = 99.999
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_percent("Percentile.percentile", self.percentile)


@dataclass(frozen=True)
class Entropy(Checked):
    """The range whose quantized histogram diverges least (Kullback-Leibler) from the observed one.

    Attributes:
        bins: Number of equal bins over ``[-max|x|, max|x|]`` in which the divergence is measured.
        quantized_bins: Number of levels the candidate ranges are reduced to.
    """

    bins: int = 128
    quantized_bins: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantized_bins < 2 or self.bins < self.quantized_bins:
            raise RecipeError(
                "Entropy needs bins >= quantized_bins >= 2, "
                f"got bins={self.bins!r} and quantized_bins={self.quantized_bins!r}"
            )


@dataclass(frozen=True)
class MinMSE(Checked):
    """The scale with the least mean squared error between values and their quantized twins.

    With a power-of-two scale the positions around the one that fits the extremes are tried; with a float scale a grid
    of shrunk ranges, refined once.

    Attributes:
        behind: Judge a tensor that is read through an elementwise function only, such as the one before a SiLU or a
            Sigmoid, by the error left behind that function: a long tail that the function flattens costs nothing.
    """

    behind: bool = False


@dataclass(frozen=True)
class NonOverflow:
    """The finest scale at which no observed value overflows."""


@dataclass(frozen=True)
class LayerWisePercentile(Checked):
    """For each tensor the best of several percentiles, by the error it leaves.

    Attributes:
        candidates: The percentiles tried.
        metric: "mae" for the mean absolute error, "mse" for the mean squared one.
    """

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: str = "mae"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.candidates:
            raise RecipeError("LayerWisePercentile.candidates must not be empty, got ()")
        for candidate in self.candidates:
            _check_percent("LayerWisePercentile.candidates", candidate)
        if self.metric not in ("mae", "mse"):
            raise RecipeError(f"LayerWisePercentile.metric must be 'mae' or 'mse', got {self.metric!r}")


@dataclass(frozen=True)
class BestPercentile(Checked):
    """For each tensor the best of all percentiles, by the error it leaves.

    Attributes:
        lowest: The smallest percentile that is tried, 50 to 100; the largest is 100.
        metric: "mae" for the mean absolute error, "mse" for the mean squared one.
        symmetric: As in `Percentile`.
    """

    lowest: float = 99.0
    metric: str = "mse"
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_percent("BestPercentile.lowest", self.lowest)
        if self.lowest == 100:
            raise RecipeError("BestPercentile.lowest must be below 100, where there is nothing to search; use MinMax()")
        if self.metric not in ("mae", "mse"):
            raise RecipeError(f"BestPercentile.metric must be 'mae' or 'mse', got {self.metric!r}")


Method = MinMax | Percentile | Entropy | MinMSE | NonOverflow | LayerWisePercentile | BestPercentile


def _check_percent(where: str, given: float) -> None:
    # Nobody cuts half of the values off; what is that small was meant as a fraction.
    if not 50 <= given <= 100:
        raise RecipeError(f"{where} must be in [50, 100]: percent, not a fraction; got {given!r}")
