"""Named configurations beside the presets of the same names."""

import pytest
from facade_models import Reader, cnn, run, samples

from quantry.errors import RecipeError
from quantry.onnx import ModelQuantizer, get_default_config
from quantry.onnx.quantization.config.custom_config import DEFAULT_CONFIGS
from quantry.onnx.translate import translate
from quantry.recipe import MISSING_PRESETS, PRESETS

USABLE = [
    name for name, config in DEFAULT_CONFIGS.items() if not config.include_fast_ft and name not in MISSING_PRESETS
]
# VINT8 replaces Clip(0, 6) while it equalizes, and keeps BatchNormalization as a convolution.
SAME = [name for name in USABLE if name != "VINT8"]


def test_names_are_those_of_the_presets() -> None:
    assert set(DEFAULT_CONFIGS) == (set(PRESETS) | set(MISSING_PRESETS)) - {"CPU_INT8"}


@pytest.mark.parametrize("name", SAME)
def test_configuration_means_what_the_preset_means(name: str) -> None:
    # Extended formats also write some operators differently, and in a dialect of their own.
    ours, theirs = PRESETS[name].recipe, translate(get_default_config(name)).recipe
    assert {difference.path for difference in theirs.diff(ours)} <= {"prepare.npu", "emit.format"}


@pytest.mark.parametrize("name", USABLE)
def test_configuration_gives_a_model_that_runs(name: str) -> None:
    model = ModelQuantizer(get_default_config(name)).quantize_model(cnn(), None, Reader())
    assert model is not None
    assert run(model, samples(1)[0])[0].shape == (2, 5)


@pytest.mark.parametrize("name", [name for name in DEFAULT_CONFIGS if name not in USABLE])
def test_configuration_without_its_algorithm_says_so(name: str) -> None:
    with pytest.raises(RecipeError, match="is not there yet"):
        translate(get_default_config(name))


def test_configurations_are_copies() -> None:
    first = get_default_config("XINT8")
    first.extra_options["ActivationSymmetric"] = False
    first.nodes_to_exclude.append("x")
    second = get_default_config("XINT8")
    assert second.extra_options == {"ForceQuantizeNoInputCheck": True, "ActivationSymmetric": True}
    assert second.nodes_to_exclude == []


def test_unknown_name_is_an_error_with_the_nearest_spelling() -> None:
    with pytest.raises(RecipeError, match="did you mean 'S8S8_AAWS'"):
        get_default_config("S8S8_AAWSS")
