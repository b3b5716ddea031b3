"""Calibration methods: how observed values become the range of a tensor.

The type is the choice and its fields are the options of the method: ``Percentile(99.99)`` both selects and configures.
"""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class MinMax(Checked):
    """The smallest and the largest observed value.

    Attributes:
        moving_average: None takes the extremes over all batches. A constant ``c`` in [0, 1) averages the extremes of
            the batches with weights proportional to ``(1 - c)**age``; the newest batch has age 0, and ``c=0`` is the
            plain mean.
    """

    moving_average: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moving_average is not None and not 0 <= self.moving_average < 1:
            raise RecipeError(f"MinMax.moving_average must be in [0, 1), got {self.moving_average!r}")


@dataclass(frozen=True)
class Percentile(Checked):
    """Clips the rare largest values.

    Attributes:
        percentile: Percentage of values inside the range, 50 to 100.
        symmetric: True applies one threshold to ``|x|``, the default of onnxruntime and AMD Quark; False clips half of
            the remainder at each end.
    """

    percentile: float = 99.999  # onnxruntime's and AMD Quark's default.
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_percent("Percentile.percentile", self.percentile)


@dataclass(frozen=True)
class Entropy(Checked):
    """The range whose quantized histogram has the smallest Kullback-Leibler divergence from the observed one.

    Attributes:
        bins: Equal bins over ``[-max|x|, max|x|]`` in which the divergence is measured.
        quantized_bins: Levels of the quantized histogram.
    """

    # onnxruntime's defaults.
    bins: int = 128
    quantized_bins: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantized_bins < 2 or self.bins < self.quantized_bins:
            raise RecipeError(
                "Entropy must have bins >= quantized_bins >= 2, "
                f"got bins={self.bins!r} and quantized_bins={self.quantized_bins!r}"
            )


@dataclass(frozen=True)
class MinMSE(Checked):
    """The scale with the smallest mean squared quantization error.

    With power-of-two scales, the exponents around the one that covers the extremes are tried; with float scales, a grid
    of smaller ranges, refined once.

    Attributes:
        after_functions: Where a tensor is read only through an elementwise function, such as SiLU or Sigmoid, measure
            the error after that function: a long tail that the function flattens then costs nothing.
        either_sign: For weights in groups of at most 4 bits: a symmetric group may have a negative scale, so that the
            longer side of its range gets the extra integer (-8 of int4). MatMulNBits supports this.
    """

    after_functions: bool = False
    either_sign: bool = False


@dataclass(frozen=True)
class HalfQuadratic(Checked):
    """Half-quadratic quantization (HQQ): scale and zero point of groups by alternating minimization in a norm below 1.

    Few large errors count less than many small ones, so outliers do not coarsen the other weights of their group; of
    what the rounds propose, the least squared error wins. For asymmetric weights in groups; other weights get the range
    of `MinMSE`. Needs no data.

    Attributes:
        power: The norm, above 0 and at most 1.
        rounds: Rounds of the alternating minimization.
    """

    power: float = 0.7
    rounds: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power <= 1:
            raise RecipeError(f"HalfQuadratic.power must be above 0 and at most 1, got {self.power!r}")
        if self.rounds < 1:
            raise RecipeError(f"HalfQuadratic.rounds must be at least 1, got {self.rounds!r}")


@dataclass(frozen=True)
class NonOverflow:
    """The finest scale at which no observed value overflows."""


@dataclass(frozen=True)
class LayerWisePercentile(Checked):
    """For each tensor, the best of several percentiles by quantization error.

    Attributes:
        candidates: The percentiles to try.
        metric: "mae" for the mean absolute error, "mse" for the mean squared error.
    """

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)  # AMD Quark's PercentileCandidates.
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
    """For each tensor, the best of all percentiles by quantization error.

    Attributes:
        lowest: The smallest percentile to try, at least 50 and below 100; the largest is 100.
        metric: "mae" for the mean absolute error, "mse" for the mean squared error.
        symmetric: As in `Percentile`.
    """

    lowest: float = 99.0
    metric: str = "mse"
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_percent("BestPercentile.lowest", self.lowest)
        if self.lowest == 100:
            raise RecipeError(
                "BestPercentile.lowest must be below 100, got 100, which leaves nothing to search; use MinMax()"
            )
        if self.metric not in ("mae", "mse"):
            raise RecipeError(f"BestPercentile.metric must be 'mae' or 'mse', got {self.metric!r}")


@dataclass(frozen=True)
class Distribution(Checked):
    """For 8-bit floats: the scale with which values spread as the values of the type do; for integers as `MinMax`.

    Attributes:
        power: Power of the magnitudes whose spread is measured; 1/3 gives large values less weight.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power <= 1:
            raise RecipeError(f"Distribution.power must be in (0, 1], got {self.power!r}")


Method = (
    MinMax
    | Percentile
    | Entropy
    | MinMSE
    | HalfQuadratic
    | NonOverflow
    | LayerWisePercentile
    | BestPercentile
    | Distribution
)


def _check_percent(path: str, value: float) -> None:
    # Nobody clips half of the values: a number below 50 was probably meant as a fraction such as 0.999.
    if not 50 <= value <= 100:
        raise RecipeError(f"{path} must be in [50, 100]: percent, not a fraction; got {value!r}")
