"""What every `quantry.targets.Target` must do, and its backend if it has one."""

import numpy as np
import pytest

from quantry.errors import ModelError
from quantry.quantization import quantize
from quantry.recipe import PRESETS
from quantry.targets import Target, backend_of, check_model, place
from quantry.testing.small_model import small_model, small_samples


class TargetSuite:
    """Inherit as ``class TestMyTarget(TargetSuite)`` and supply the fixture `target`.

    Example:
        ::

            class TestMyNpu(TargetSuite):
                @pytest.fixture
                def target(self):
                    return MY_NPU
    """

    @pytest.fixture
    def target(self) -> Target:
        """The target under test."""
        raise NotImplementedError("Supply the fixture `target`.")

    def test_says_what_it_is(self, target: Target) -> None:
        """Tables show the name and one line."""
        assert target.name
        assert target.name == target.name.lower()
        assert target.summary
        assert "\n" not in target.summary

    def test_rules_have_text_source_and_consequence(self, target: Target) -> None:
        """A user who is refused must learn why, and where that is written."""
        for rule in target.rules:
            assert rule.text, rule.name
            assert rule.source, rule.name
            assert rule.consequence, rule.name

    def test_recommended_presets_are_accepted(self, target: Target) -> None:
        """The presets that a target recommends suit it."""
        assert target.recommended
        assert {name.upper() for name in target.recommended} <= set(target.presets)

    def test_adapting_a_recipe_twice_changes_nothing(self, target: Target) -> None:
        """A recipe that is written to a file and read back stays the same."""
        for name in target.presets:
            once = target.legalized(PRESETS[name].recipe)
            assert target.legalized(once) == once

    def test_model_of_every_recommended_preset_keeps_the_rules(self, target: Target) -> None:
        """What the legalizer writes passes the check."""
        for name in target.recommended:
            result = quantize(small_model(), small_samples(), name, target=target, store=None)
            assert check_model(result.to_bytes(), target) == ()

    def test_backend_runs_and_places_the_model(self, target: Target) -> None:
        """The backend computes nearly what the simulation does, and knows every node."""
        backend = backend_of(target)
        if backend is None:
            pytest.skip(f"only the rules of {target.name} are known")
        if backend.version() is None:
            pytest.skip(f"{backend.product} is not installed: {backend.install}")
        result = quantize(small_model(), small_samples(), target.recommended[0], target=target, store=None)
        (feeds, *_) = small_samples()
        runner = backend.open(result.to_bytes())
        outputs = runner.run(feeds)
        runner.close()
        assert all(np.isfinite(array).all() for array in outputs.values())
        placed = place(result.to_bytes(), target, feeds)
        assert placed.nodes
        assert not placed.elsewhere
        with pytest.raises(ModelError):
            backend.open(b"not a model")
