"""What every calibration method must do, and statistics to try one on."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid, Range
from quantry.numerics.histogram import TensorStats
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType, Method
from quantry.scale import BinnedValues, ExactValues, Observed, find_range

Values = npt.NDArray[np.float32]

GRIDS = {
    "int8": Grid(DataType.INT8, symmetric=True),
    "int8 asymmetric": Grid(DataType.INT8, symmetric=False),
    "int8 power of two": Grid(DataType.INT8, symmetric=True, power_of_two=True),
    "uint8 power of two asymmetric": Grid(DataType.UINT8, symmetric=False, power_of_two=True),
    "uint4 asymmetric": Grid(DataType.UINT4, symmetric=False),
    "int16": Grid(DataType.INT16, symmetric=True),
    "uint16 power of two asymmetric": Grid(DataType.UINT16, symmetric=False, power_of_two=True),
}
"""The kinds of grid that the suite tries."""


def stats_of(batches: Iterable[npt.ArrayLike]) -> TensorStats:
    """Return the statistics that the observe stage would collect of these values.

    Args:
        batches: The values of each sample.

    Example:
        >>> stats_of([[1.0, -2.0], [float("nan")]]).nan_count
        1
    """
    samples = [np.asarray(batch, np.float32).ravel() for batch in batches]
    values = np.concatenate(samples)
    finite = values[np.isfinite(values)]
    codes, counts = np.unique((finite.view(np.uint32) >> 16).astype(np.uint16), return_counts=True)
    finite_samples = [sample[np.isfinite(sample)] for sample in samples]
    return TensorStats(
        minimum=float(finite.min(initial=np.inf)),
        maximum=float(finite.max(initial=-np.inf)),
        count=values.size,
        nan_count=int(np.isnan(values).sum()),
        inf_count=int(np.isinf(values).sum()),
        batch_minima=np.array([sample.min(initial=np.inf) for sample in finite_samples], np.float32),
        batch_maxima=np.array([sample.max(initial=-np.inf) for sample in finite_samples], np.float32),
        codes=codes,
        counts=counts.astype(np.int64),
    )


def params_of(interval: Range, grid: Grid) -> TensorParams:
    """Return the parameters of one tensor that a range leads to.

    Args:
        interval: One range, [1].
        grid: The integers in use.
    """
    params = affine(interval, grid)
    return TensorParams(grid.dtype, params.scale[0], params.zero_point[0], limits=grid.limits)


def _samples() -> dict[str, Values]:
    rng = np.random.default_rng(7)
    normal = rng.normal(size=4000)
    return {
        "normal": normal.astype(np.float32),
        "heavy-tailed": rng.standard_t(3, size=4000).astype(np.float32),
        "rectified": np.maximum(normal, 0).astype(np.float32),
        "negative": (-np.abs(normal) - 0.5).astype(np.float32),
        "shifted": (normal * 0.1 + 2).astype(np.float32),
    }


SAMPLES = _samples()
"""Values of different shapes, 4000 of each."""


class RangeMethodSuite:
    """Inherit as ``class TestMyMethod(RangeMethodSuite)`` and supply the fixture `method`.

    Example:
        ::

            class TestMinMSE(RangeMethodSuite):
                @pytest.fixture
                def method(self):
                    return MinMSE()
    """

    @pytest.fixture
    def method(self) -> Method:
        """The options of the method under test."""
        raise NotImplementedError("Supply the fixture `method`.")

    @pytest.fixture(params=GRIDS.values(), ids=list(GRIDS))
    def grid(self, request: pytest.FixtureRequest) -> Grid:
        """The integers in use."""
        assert isinstance(request.param, Grid)
        return request.param

    def test_range_is_finite_and_in_order(self, method: Method, grid: Grid) -> None:
        """A range has a lower and an upper end, also for values on one side of zero."""
        for observed in (observed for values in SAMPLES.values() for observed in _both(values)):
            interval = find_range(observed, method, grid)
            assert interval.low.shape == interval.high.shape == (1,)
            assert np.isfinite([interval.low, interval.high]).all()
            assert interval.low[0] <= interval.high[0]

    def test_answer_is_the_same_when_asked_again(self, method: Method, grid: Grid) -> None:
        """Methods are pure: they keep nothing and change no value."""
        for values in SAMPLES.values():
            copy = values.copy()
            first, again = (find_range(ExactValues(copy), method, grid) for _ in range(2))
            np.testing.assert_array_equal([first.low, first.high], [again.low, again.high])
            np.testing.assert_array_equal(values, copy)

    def test_range_grows_with_the_values(self, method: Method, grid: Grid) -> None:
        """Eight times the values have eight times the range: no method knows an absolute size."""
        for values in SAMPLES.values():
            for plain, scaled in zip(_both(values), _both(values * 8), strict=True):
                plain_range, scaled_range = (find_range(observed, method, grid) for observed in (plain, scaled))
                np.testing.assert_allclose(
                    [scaled_range.low, scaled_range.high], [plain_range.low * 8, plain_range.high * 8], rtol=1e-6
                )

    def test_channels_do_not_see_each_other(self, method: Method, grid: Grid) -> None:
        """A channel gets a range as good as it would get alone."""
        rows = np.stack(list(SAMPLES.values()))
        together = find_range(ExactValues(rows, axis=0), method, grid)
        assert together.low.shape == (len(rows),)
        for index, row in enumerate(rows):
            alone = find_range(ExactValues(row), method, grid)
            channel = Range(together.low[index : index + 1], together.high[index : index + 1])
            assert _error(row, channel, grid) == pytest.approx(_error(row, alone, grid), rel=0.01, abs=1e-12)

    def test_counted_values_serve_as_well_as_exact_ones(self, method: Method, grid: Grid) -> None:
        """The histogram of the observe stage costs next to nothing in quality.

        Said of float scales of few bits: the nearest power of two may change with the last digit, and at 16 bits a cut
        that moves within a bin is all the error there is.
        """
        if grid.power_of_two or grid.dtype.bits > 8:
            return
        for values in SAMPLES.values():
            exact, counted = (find_range(observed, method, grid) for observed in _both(values))
            assert _error(values, counted, grid) == pytest.approx(_error(values, exact, grid), rel=0.1)

    @pytest.mark.parametrize("value", [3.5, -3.5, 1e-44, 3e38, -3e38])
    def test_lone_value_has_valid_parameters(self, method: Method, grid: Grid, value: float) -> None:
        """One value, however extreme, leads to a normal scale and a zero point inside the type."""
        values = np.array([value], np.float32)
        for observed in _both(values):
            params = params_of(find_range(observed, method, grid), grid)
            assert fake_quantize(np.zeros(1, np.float32), params) == 0
            assert np.isfinite(fake_quantize(values, params)).all()

    def test_zeros_have_scale_one(self, method: Method, grid: Grid) -> None:
        """A tensor of zeros is exact at any scale; it gets 1."""
        for observed in _both(np.zeros(16, np.float32)):
            params = params_of(find_range(observed, method, grid), grid)
            assert params.scale == 1
            assert fake_quantize(np.zeros(1, np.float32), params) == 0


def _both(values: Values) -> tuple[Observed, Observed]:
    return ExactValues(values), BinnedValues(stats_of([values]))


def _error(values: Values, interval: Range, grid: Grid) -> float:
    difference = fake_quantize(values, params_of(interval, grid)).astype(np.float64) - values
    return float((difference**2).mean())
