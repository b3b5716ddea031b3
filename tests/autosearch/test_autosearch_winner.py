"""Among scores that differ by chance only, the model with the cheaper kernels wins; otherwise the best score does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantry
from quantry.autosearch import SearchResult
from quantry.recipe import DataType
from quantry.testing.small_model import small_model, small_samples


class WideIsBetter:
    """Scores models with 16-bit activations better than others, by a gain that varies from sample to sample."""

    size = 40
    fingerprint = "wide is better"

    def __init__(self, gain: float, *, per_sample: bool = True) -> None:
        self._gain = gain
        if not per_sample:
            self.per_sample = None

    def __call__(self, model_path: Path) -> float:
        return float(np.mean(self.scores(model_path)))

    def scores(self, model_path: Path) -> np.ndarray:
        generator = np.random.default_rng(0)
        base = 0.8 + 0.1 * generator.random(self.size)
        types = {tensor.data_type for tensor in onnx.load(model_path).graph.initializer}
        wide = bool(types & {onnx.TensorProto.INT16, onnx.TensorProto.UINT16})
        if not types - {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}:
            return base + self._gain  # the float model
        noise = generator.normal(size=self.size)
        return base + wide * (self._gain + 0.02 * (noise - noise.mean()))

    def per_sample(self, model_path: Path, indices: Sequence[int]) -> np.ndarray:
        return self.scores(model_path)[list(indices)]


def searched(folder: Path, evaluator: Any, **options: Any) -> SearchResult:
    settings = {"n_trials": 5, "output_dir": folder / "found", **options}
    return quantry.search(small_model().SerializeToString(), small_samples(4), evaluator, **settings)


def is_wide(found: SearchResult) -> bool:
    assert found.best is not None
    return found.best.recipe.plan.activation.dtype.bits == 16


def test_gain_within_noise_does_not_pay_for_wider_types(tmp_path: Path) -> None:
    found = searched(tmp_path, WideIsBetter(0.002))
    assert max(found.trials, key=lambda trial: trial.score or 0.0).recipe.plan.activation.dtype.bits == 16
    assert not is_wide(found)
    reason = next(note for note in found.notes if " wins over trial " in note)
    assert "within noise (95 % interval -" in reason
    assert reason.endswith("of the bit operations")
    # Everything that names the best trial agrees.
    assert found.best is not None
    assert f'"best": {found.best.number}' in (tmp_path / "found" / "search.json").read_text()
    log = (tmp_path / "found" / "auto_search.log").read_text()
    assert reason in log
    assert f"best: trial {found.best.number}," in log
    assert "dtype: uint8" in (tmp_path / "found" / "recipe.yaml").read_text()
    recommended = found.trials[0].score
    assert recommended is not None
    assert found.best.score is not None
    assert found.best.score >= recommended


OWN_SPACE = {"space": {"plan.activation.dtype": [DataType.UINT8, DataType.INT16]}, "recipe": "S16S8_ASWS"}


@pytest.mark.parametrize(
    ("gain", "options"), [(0.05, {}), (0.002, OWN_SPACE)], ids=["a gain above noise", "a space of the user"]
)
def test_best_score_wins(tmp_path: Path, gain: float, options: dict[str, Any]) -> None:
    found = searched(tmp_path, WideIsBetter(gain), **options)
    assert found.best == max(found.trials, key=lambda trial: trial.score or 0.0)
    assert any(note.startswith(f"trial {found.best.number} wins: it has the best score") for note in found.notes)


class FourBitsAreWorse(WideIsBetter):
    """Models with 4-bit weights are right about the same samples as the float model, all others about one more."""

    fingerprint = "four bits are worse"

    def scores(self, model_path: Path) -> np.ndarray:
        right = np.repeat([0.0, 1.0], [5, self.size - 5])
        types = {tensor.data_type for tensor in onnx.load(model_path).graph.initializer}
        right[0] = bool(types & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8})
        return right


def test_narrower_types_than_the_recommended_ones_must_win_by_their_score(tmp_path: Path) -> None:
    found = searched(tmp_path, FourBitsAreWorse(0.0), n_trials=60)
    assert found.best is not None
    assert any(trial.recipe.plan.weight.dtype is DataType.INT4 for trial in found.trials)
    assert found.best.score == max(trial.score or 0.0 for trial in found.trials)


def test_tolerance_is_not_given_up(tmp_path: Path) -> None:
    found = searched(tmp_path, WideIsBetter(0.002), tolerance=0.001)
    assert is_wide(found)


@pytest.mark.parametrize(("gain", "wide"), [(0.0005, False), (0.01, True)])
def test_scores_without_samples_must_be_nearly_equal(tmp_path: Path, gain: float, wide: bool) -> None:
    evaluator = WideIsBetter(gain, per_sample=False)

    def score(model_path: Path) -> float:
        return round(evaluator(model_path), 4)

    found = searched(tmp_path, score)
    assert is_wide(found) is wide


def test_other_objectives_decide_as_before(tmp_path: Path) -> None:
    found = searched(tmp_path, WideIsBetter(0.002), objectives=("accuracy", "size"), tolerance="1%")
    assert found.best is not None
    assert found.best.objectives["size"] == min(trial.objectives["size"] for trial in found.candidates)
    assert any("it has the smallest size within the tolerance" in note for note in found.notes)


class Lucky(WideIsBetter):
    """Wide models are right about five samples more than the float model, and wrong about two others."""

    fingerprint = "lucky"

    def scores(self, model_path: Path) -> np.ndarray:
        right = np.repeat([0.0, 1.0], [5, self.size - 5])
        types = {tensor.data_type for tensor in onnx.load(model_path).graph.initializer}
        if types & {onnx.TensorProto.INT16, onnx.TensorProto.UINT16}:
            right[:7] = 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0
        return right


def test_scores_above_the_float_model_are_luck(tmp_path: Path) -> None:
    found = searched(tmp_path, Lucky(0.0))
    assert max(trial.score or 0.0 for trial in found.trials) > found.reference.value
    assert not is_wide(found)
    assert found.best is not None
    assert found.best.score == found.reference.value
