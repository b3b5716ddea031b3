"""What every recipe must do, whichever format, preset or tuning step it is made of."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from quantry.memo import MemoryStore
from quantry.quantization import QuantizationResult, quantize
from quantry.recipe import Preset, Recipe, from_yaml, to_yaml
from quantry.runtime.sessions import deployment_session, run_session, simulation_session
from quantry.testing.small_model import small_model, small_samples


class FormatSuite:
    """Inherit as ``class TestMyFormat(FormatSuite)`` and supply the fixture `recipe`, which emits the format.

    Example:
        ::

            class TestMyFormat(FormatSuite):
                @pytest.fixture
                def recipe(self):
                    return Recipe(emit=EmitOptions(format=MyFormat()))
    """

    LEAST_SQNR = 15.0
    """Decibels that the quantized small model must reach; 8 bits reach about 30, 4 bits about 12."""

    @pytest.fixture
    def recipe(self) -> Recipe:
        """The recipe under test."""
        raise NotImplementedError("Supply the fixture `recipe`.")

    @pytest.fixture
    def result(self, recipe: Recipe) -> QuantizationResult:
        """The small model quantized with the recipe."""
        return quantize(small_model(), small_samples(), recipe=recipe, store=MemoryStore())

    def test_recipe_survives_yaml(self, recipe: Recipe) -> None:
        """Users keep recipes in files."""
        assert from_yaml(to_yaml(recipe)) == recipe

    def test_the_model_is_valid_and_runs(self, result: QuantizationResult, tmp_path: Path) -> None:
        """Onnxruntime runs it with all optimizations, as users do, and near the float model."""
        result.save(tmp_path / "model.onnx")
        onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"))
        quantized = deployment_session(tmp_path / "model.onnx")
        exact = deployment_session(small_model().SerializeToString())
        signal = noise = 0.0
        for feeds in small_samples(16, seed=5):
            expected, actual = run_session(exact, feeds)["y"], run_session(quantized, feeds)["y"]
            signal += float(np.square(expected).sum())
            noise += float(np.square(expected - actual).sum())
        assert 10 * np.log10(signal / max(noise, 1e-30)) >= self.LEAST_SQNR

    def test_simulation_computes_what_the_model_says(self, result: QuantizationResult) -> None:
        """Evaluation and deployment load the same file."""
        session = simulation_session(result.quantized.to_bytes())
        assert np.isfinite(run_session(session, small_samples(1)[0])["y"]).all()

    def test_inputs_and_outputs_keep_name_type_and_shape(self, result: QuantizationResult) -> None:
        """The quantized model replaces the float one in the user's program."""
        exact, quantized = small_model(), onnx.load_from_string(result.quantized.to_bytes())
        for expected, actual in (
            (exact.graph.input, quantized.graph.input),
            (exact.graph.output, quantized.graph.output),
        ):
            assert [value.name for value in actual] == [value.name for value in expected]
            assert [value.type.tensor_type.elem_type for value in actual] == [1 for _ in expected]

    def test_the_same_inputs_give_the_same_bytes(self, recipe: Recipe, result: QuantizationResult) -> None:
        """With a store, without one, and in another run."""
        again = quantize(small_model(), small_samples(), recipe=recipe, store=None)
        assert again.quantized.to_bytes() == result.quantized.to_bytes()

    def test_every_node_left_float_has_a_reason(self, result: QuantizationResult) -> None:
        """Users read why."""
        assert all(node.reason for node in result.declined)


class PresetSuite(FormatSuite):
    """Inherit as ``class TestMyPreset(PresetSuite)`` and supply the fixture `preset`.

    Example:
        ::

            class TestMine(PresetSuite):
                @pytest.fixture
                def preset(self):
                    return Preset("what it sets", Recipe(name="MINE"))
    """

    @pytest.fixture
    def preset(self) -> Preset:
        """The preset under test."""
        raise NotImplementedError("Supply the fixture `preset`.")

    @pytest.fixture
    def recipe(self, preset: Preset) -> Recipe:
        """The preset's recipe."""
        return preset.recipe

    def test_it_has_a_name_and_a_summary(self, preset: Preset) -> None:
        """`quantry presets` prints both."""
        assert preset.recipe.name
        assert preset.summary
