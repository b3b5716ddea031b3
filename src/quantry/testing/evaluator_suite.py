"""What every evaluator of a task must do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class EvaluatorSuite:
    """Inherit as ``class TestMyEvaluator(EvaluatorSuite)``; supply the fixtures `evaluator`, `model` and `worse_model`.

    Example:
        ::

            class TestTopAccuracy(EvaluatorSuite):
                @pytest.fixture
                def evaluator(self, data, labels):
                    return TopAccuracy(data, labels)

                @pytest.fixture
                def model(self, tmp_path):
                    return save(classifier(), tmp_path / "model.onnx")

                @pytest.fixture
                def worse_model(self, tmp_path):
                    return save(classifier(noise=1.0), tmp_path / "worse.onnx")
    """

    @pytest.fixture
    def evaluator(self) -> Callable[[Path], float]:
        """The evaluator under test."""
        raise NotImplementedError("Supply the fixture `evaluator`.")

    @pytest.fixture
    def model(self) -> Path:
        """The path of a model that does its task."""
        raise NotImplementedError("Supply the fixture `model`.")

    @pytest.fixture
    def worse_model(self) -> Path:
        """The path of a model that does the same task clearly worse."""
        raise NotImplementedError("Supply the fixture `worse_model`.")

    def test_direction_is_one_that_a_search_knows(self, evaluator: Any) -> None:
        """A search must know which scores are better."""
        assert getattr(evaluator, "direction", "maximize") in ("maximize", "minimize")

    def test_score_is_a_finite_number(self, evaluator: Any, model: Path) -> None:
        """Scores are sorted."""
        assert np.isfinite(float(evaluator(model)))

    def test_a_path_may_be_a_string(self, evaluator: Any, model: Path) -> None:
        """Users pass either."""
        assert float(evaluator(str(model))) == float(evaluator(model))

    def test_the_same_model_has_the_same_score(self, evaluator: Any, model: Path) -> None:
        """Searches reuse scores by content."""
        assert float(evaluator(model)) == float(evaluator(model))

    def test_a_worse_model_has_a_worse_score(self, evaluator: Any, model: Path, worse_model: Path) -> None:
        """In the declared direction."""
        sign = 1 if getattr(evaluator, "direction", "maximize") == "maximize" else -1
        assert sign * float(evaluator(worse_model)) < sign * float(evaluator(model))

    def test_fingerprint_does_not_change_with_use(self, evaluator: Any, model: Path) -> None:
        """It is part of the key under which a score is stored."""
        fingerprint = getattr(evaluator, "fingerprint", None)
        if fingerprint is None:
            pytest.skip("evaluators without a fingerprint are identified by their code")
        first = fingerprint() if callable(fingerprint) else fingerprint
        evaluator(model)
        second = evaluator.fingerprint
        assert (second() if callable(second) else second) == first

    def test_the_mean_of_samples_is_the_score(self, evaluator: Any, model: Path) -> None:
        """Racing compares models on some samples first; that is sound only for means."""
        if not hasattr(evaluator, "per_sample"):
            pytest.skip("the score is not a mean over samples")
        scores = np.asarray(evaluator.per_sample(model, list(range(evaluator.size))), np.float64)
        assert scores.shape == (evaluator.size,)
        assert scores.mean() == pytest.approx(float(evaluator(model)), rel=1e-9, abs=1e-12)

    def test_samples_are_scored_independently(self, evaluator: Any, model: Path) -> None:
        """A sample has the same score in any selection and order."""
        if not hasattr(evaluator, "per_sample"):
            pytest.skip("the score is not a mean over samples")
        everything = np.asarray(evaluator.per_sample(model, list(range(evaluator.size))), np.float64)
        backwards = list(range(evaluator.size))[::-2]
        np.testing.assert_array_equal(
            np.asarray(evaluator.per_sample(model, backwards), np.float64), everything[backwards]
        )
