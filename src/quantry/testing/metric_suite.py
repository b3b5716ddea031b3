"""What every `quantry.evaluate.Metric` must do."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantry.evaluate import Metric
from quantry.evaluate.metrics.metric import pair_outputs

_SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (1, 40), (3, 12, 16), (1, 2, 16, 16), (1, 12, 13, 3), (2, 2, 2, 3, 3))
_DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def _output(shape: tuple[int, ...] = (1, 2, 16, 16), seed: int = 0) -> NDArray[np.float32]:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), dtype=np.float32)


class MetricSuite:
    """Inherit as ``class TestMyMetric(MetricSuite)`` and supply the fixture `metric`.

    Example:
        ::

            class TestCosine(MetricSuite):
                @pytest.fixture
                def metric(self):
                    return Cosine()
    """

    @pytest.fixture
    def metric(self) -> Metric:
        """The metric under test."""
        raise NotImplementedError("Supply the fixture `metric`.")

    def is_worse(self, metric: Metric, score: float, than: float) -> bool:
        """Say whether a score is strictly worse than another in the metric's direction."""
        return score < than if metric.higher_is_better else score > than

    def test_names_are_lower_case(self, metric: Metric) -> None:
        """Names are looked up in any case, so the spelling that is kept is lower case."""
        names = (metric.name, *metric.aliases)
        assert all(name and name == name.casefold() for name in names)

    def test_worst_is_worse_than_best(self, metric: Metric) -> None:
        """The direction fits the two ends."""
        assert self.is_worse(metric, metric.worst, metric.best)
        assert np.isfinite(metric.best)

    @pytest.mark.parametrize("shape", _SHAPES, ids=str)
    def test_equal_outputs_have_the_best_score(self, metric: Metric, shape: tuple[int, ...]) -> None:
        """Nothing is better than no difference, whatever the rank."""
        output = _output(shape)
        assert metric.score(output, output.copy()) == pytest.approx(metric.best, abs=1e-12)

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_every_type_of_output_is_accepted(self, metric: Metric, dtype: str) -> None:
        """Outputs may be floats, amounts, labels or truth values."""
        output = np.arange(24).reshape(2, 12).astype(dtype)
        score = metric.score(output, output.copy())
        assert isinstance(score, float)
        assert score == pytest.approx(metric.best, abs=1e-12)

    def test_strings_are_compared_by_agreement(self, metric: Metric) -> None:
        """Classifiers of the ONNX-ML domain answer with strings."""
        labels = np.array(["cat", "dog", "cat"], dtype=object)
        assert metric.score(labels, labels.copy()) == pytest.approx(metric.best, abs=1e-12)
        assert self.is_worse(metric, metric.score(labels, labels[::-1].copy() + "s"), metric.best)

    @pytest.mark.parametrize("shape", [shape for shape in _SHAPES if shape], ids=str)
    def test_more_noise_scores_worse(self, metric: Metric, shape: tuple[int, ...]) -> None:
        """The direction is the one the metric declares."""
        output, noise = _output(shape), _output(shape, seed=1)
        scores = [metric.score(output, output + np.float32(amount) * noise) for amount in (0.0, 1e-3, 1e-1, 3.0)]
        assert all(self.is_worse(metric, later, than=earlier) for earlier, later in itertools.pairwise(scores))

    def test_more_wrong_labels_score_worse(self, metric: Metric) -> None:
        """Labels are compared by agreement, so how far two labels are apart does not matter."""
        labels = np.arange(20, dtype=np.int64)
        few, many, far = labels.copy(), labels.copy(), labels.copy()
        few[:2] += 1
        many[:9] += 1
        far[:2] += 900
        assert self.is_worse(metric, metric.score(labels, many), than=metric.score(labels, few))
        assert metric.score(labels, far) == metric.score(labels, few)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite_on_one_side_is_the_worst_score(self, metric: Metric, bad: float) -> None:
        """A broken model must not look good, and its score is a number that can be sorted."""
        output, broken = _output(), _output()
        broken[0, 0, 3, 3] = bad
        assert metric.score(output, broken) == metric.worst
        assert metric.score(broken, output) == metric.worst

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite_on_both_sides_counts_as_equal(self, metric: Metric, bad: float) -> None:
        """Masks hold minus infinity in both models."""
        output = _output()
        output[0, 0, 3, 3] = bad
        assert metric.score(output, output.copy()) == pytest.approx(metric.best, abs=1e-12)

    def test_another_shape_is_the_worst_score(self, metric: Metric) -> None:
        """Models with a data-dependent number of rows may give another number of them."""
        assert metric.score(_output((5, 7)), _output((4, 7))) == metric.worst

    def test_empty_outputs_have_the_best_score(self, metric: Metric) -> None:
        """Two models that both find nothing agree."""
        assert metric.score(_output((0, 7)), _output((0, 7))) == metric.best

    def test_zeros_have_the_best_score_when_equal(self, metric: Metric) -> None:
        """A reference of zeros divides nothing by zero."""
        assert metric.score(np.zeros((1, 9)), np.zeros((1, 9))) == pytest.approx(metric.best, abs=1e-12)

    @pytest.mark.parametrize("shape", [(1, 9), (1, 2, 16, 16)], ids=str)
    @pytest.mark.parametrize("constant", [0.0, -3.0])
    def test_error_in_a_constant_reference_scores_less_than_best(
        self, metric: Metric, shape: tuple[int, ...], constant: float
    ) -> None:
        """A reference without spread still gives a number, and not the best one."""
        reference = np.full(shape, constant, dtype=np.float32)
        score = metric.score(reference, reference + _output(shape))
        assert not np.isnan(score)
        assert self.is_worse(metric, score, than=metric.best)

    @pytest.mark.parametrize("size", [1e-30, 1e30])
    def test_very_small_and_very_large_outputs_are_scored(self, metric: Metric, size: float) -> None:
        """Squares of float32 values neither vanish nor overflow unnoticed."""
        output, noise = (_output(seed=seed).astype(np.float64) * size for seed in (0, 1))
        score = metric.score(output, output + 0.1 * noise)
        assert not np.isnan(score)
        assert self.is_worse(metric, score, than=metric.best)

    def test_values_beyond_squares_give_no_nan(self, metric: Metric) -> None:
        """float64 models may hold values whose squares overflow."""
        output: NDArray[Any] = np.array([1e300, -1e300, 1.0])
        score = metric.score(output, -output)
        assert not np.isnan(score)
        assert self.is_worse(metric, score, than=metric.best)

    def test_outputs_are_left_as_they_were(self, metric: Metric) -> None:
        """Arrays belong to the caller; the same arrays give the same score again."""
        reference, quantized = _output(), _output(seed=1)
        for array in (reference, quantized):
            array.setflags(write=False)
        assert metric.score(reference, quantized) == metric.score(reference, quantized)

    def test_several_outputs_have_one_score(self, metric: Metric) -> None:
        """Together they score best when all are equal, and worst when one cannot be compared."""
        equal, wrong = pair_outputs(_output(), _output()), pair_outputs(_output((4,)), _output((4,), seed=1))
        assert metric.score_outputs([equal, equal]) == pytest.approx(metric.best, abs=1e-12)
        assert self.is_worse(metric, metric.score_outputs([equal, wrong]), than=metric.best)
        assert metric.score_outputs([equal, None]) == metric.worst
        assert metric.score_outputs([wrong]) == metric.score_pair(wrong)
