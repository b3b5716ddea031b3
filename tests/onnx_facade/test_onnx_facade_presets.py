"""Named configurations equal the presets of the same names."""

import pytest
from facade_models import Reader, cnn, run, samples
from quantry.onnx.quantization.config import custom_config
from quantry.onnx.quantization.config.custom_config import DEFAULT_CONFIGS

import quantry.onnx
from quantry.errors import RecipeError
from quantry.onnx import ModelQuantizer, QConfig, get_default_config
from quantry.onnx.translate import translate
from quantry.recipe import PRESETS

USABLE = list(DEFAULT_CONFIGS)
# What is trained runs long: translated here, and run in tests/tune.
RUN = [name for name in USABLE if not DEFAULT_CONFIGS[name].include_fast_ft]
# VINT8 replaces Clip(0, 6) while it equalizes, and keeps BatchNormalization as a convolution.
SAME = [name for name in USABLE if name != "VINT8"]


def test_names_are_those_of_the_presets() -> None:
    ours_alone = {
        name for name in PRESETS if name == "CPU_INT8" or name.startswith(("RECOMMENDED", "FP8", "MATMUL_NBITS_"))
    }
    assert set(DEFAULT_CONFIGS) == set(PRESETS) - ours_alone


@pytest.mark.parametrize("name", SAME)
def test_configuration_equals_the_preset(name: str) -> None:
    # Extended formats also write some operators differently, and in a dialect of their own.
    ours, theirs = PRESETS[name].recipe, translate(get_default_config(name)).recipe
    assert {difference.path for difference in theirs.diff(ours)} <= {"prepare.npu", "emit.format"}


@pytest.mark.parametrize("name", RUN)
def test_model_of_a_configuration_runs(name: str) -> None:
    model = ModelQuantizer(get_default_config(name)).quantize_model(cnn(), None, Reader())
    assert model is not None
    assert run(model, samples(1)[0])[0].shape == (2, 5)


@pytest.mark.parametrize("name", [name for name in SAME if name != "UINT8_DYNAMIC_QUANT"])
def test_configuration_by_tensors_is_equivalent(name: str) -> None:
    by_tensors: QConfig = getattr(quantry.onnx, f"{name}_QCONFIG")
    differences = by_tensors.to_job().recipe.diff(translate(get_default_config(name)).recipe)
    allowed: set[str] = set()
    if "ADAQUANT" in name:  # It trains longer there and leaves biases alone, as in AMD Quark.
        allowed = {"tune.steps"}
    if name.startswith("A8W8"):  # Eight bits are written in standard pairs there.
        allowed |= {"emit.format", "prepare.npu"}
    if "TRANSFORMER" in name:  # The switch is spelt as a list of operator types.
        allowed |= {"plan.selection.operators", "prepare.npu"}
    assert {difference.path for difference in differences} <= allowed
    assert QConfig.from_dict(by_tensors.to_dict()) == by_tensors


def test_configurations_of_modules_are_copies() -> None:
    first = quantry.onnx.XINT8_QCONFIG
    first.extra_options["CLESteps"] = 3
    first.algo_config.clear()
    assert quantry.onnx.XINT8_QCONFIG.algo_config
    assert get_default_config("A8W8") == custom_config.A8W8_CONFIG
    assert custom_config.DEFAULT_ADAROUND_PARAMS["LearningRate"] == 0.1
    with pytest.raises(AttributeError, match="did you mean 'XINT8_QCONFIG'"):
        _ = quantry.onnx.XINT_QCONFIG
    with pytest.raises(AttributeError, match="UINT8_DYNAMIC_QUANT_QCONFIG"):
        _ = quantry.onnx.UINT8_DYNAMIC_QUANT_QCONFIG


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
