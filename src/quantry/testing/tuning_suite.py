"""What every finetuning algorithm must do."""

from dataclasses import replace

import numpy as np
import pytest

from quantry.memo import MemoryStore
from quantry.quantization import QuantizationResult, quantize
from quantry.recipe import DataType, PlanOptions, Recipe, TensorSpec, TuneOptions, TuneStep, from_yaml, to_yaml
from quantry.runtime.sessions import deployment_session, run_session, simulation_session
from quantry.testing.small_model import small_model, small_samples

# Four-bit weights leave an algorithm something to improve.
_COARSE = Recipe(plan=PlanOptions(weight=TensorSpec(DataType.INT4)))


def _error(result: QuantizationResult) -> float:
    """Return the mean squared error of the outputs on samples that were not used for calibration."""
    exact = deployment_session(small_model().SerializeToString())
    quantized = simulation_session(result.to_bytes())
    pairs = [
        (run_session(exact, feeds)["y"], run_session(quantized, feeds)["y"]) for feeds in small_samples(64, seed=9)
    ]
    return float(np.mean([np.square(expected - actual).mean() for expected, actual in pairs]))


class TuningSuite:
    """Inherit as ``class TestMyAlgorithm(TuningSuite)`` and supply the fixture `step`.

    Example:
        ::

            class TestAdaRound(TuningSuite):
                @pytest.fixture
                def step(self):
                    return AdaRound(iterations=50)
    """

    MOST_ERROR = 1.05
    """Error on new samples, relative to the untuned model; more than 1 because the small model has few samples."""

    @pytest.fixture
    def step(self) -> TuneStep:
        """The options of the algorithm under test; few iterations are enough."""
        raise NotImplementedError("Supply the fixture `step`.")

    @pytest.fixture
    def recipe(self, step: TuneStep) -> Recipe:
        """A recipe with coarse weights and the step."""
        return replace(_COARSE, tune=TuneOptions((step,)))

    @pytest.fixture
    def store(self) -> MemoryStore:
        """A store of its own for each test."""
        return MemoryStore()

    def test_step_survives_yaml(self, recipe: Recipe) -> None:
        """Users keep recipes in files."""
        assert from_yaml(to_yaml(recipe)) == recipe

    def test_error_on_new_samples_does_not_grow(self, recipe: Recipe, store: MemoryStore) -> None:
        """Tuning exists to make the model better."""
        samples = small_samples(32)
        plain = _error(quantize(small_model(), samples, recipe=_COARSE, store=store))
        tuned = _error(quantize(small_model(), samples, recipe=recipe, store=store))
        assert tuned <= plain * self.MOST_ERROR

    def test_the_same_inputs_give_the_same_bytes(self, recipe: Recipe, store: MemoryStore) -> None:
        """With a store, without one, and in another run."""
        stored = quantize(small_model(), small_samples(), recipe=recipe, store=store).to_bytes()
        assert quantize(small_model(), small_samples(), recipe=recipe, store=None).to_bytes() == stored

    def test_model_and_samples_are_left_unchanged(self, recipe: Recipe, store: MemoryStore) -> None:
        """Both belong to the caller."""
        model, samples = small_model(), small_samples()
        for sample in samples:
            sample["x"].setflags(write=False)
        original = model.SerializeToString(deterministic=True)
        quantize(model, samples, recipe=recipe, store=store)
        assert model.SerializeToString(deterministic=True) == original

    def test_one_sample_is_enough_to_run(self, recipe: Recipe, store: MemoryStore) -> None:
        """Few samples give a poor result, never an error."""
        result = quantize(small_model(), small_samples(1), recipe=recipe, store=store)
        assert np.isfinite(_error(result))

    def test_weights_stay_on_the_grid_of_their_type(self, recipe: Recipe, store: MemoryStore) -> None:
        """Tuned weights are still integers of the planned type."""
        result = quantize(small_model(), small_samples(), recipe=recipe, store=store)
        planned = [params for params in result.params.tensors.values() if params.dtype is DataType.INT4]
        assert planned
        assert all(np.isfinite(params.scale).all() and (params.scale > 0).all() for params in planned)
