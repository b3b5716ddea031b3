"""Each 8-bit format of the same plan gives identical outputs in the safe session, on a trained model."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quantry.demo import INPUT_NAME, MODEL_PATH, calibration_inputs
from quantry.emit import emit
from quantry.evaluate import run_session, simulation_session
from quantry.observe import Statistics, calibration_data, observe
from quantry.plan import plan
from quantry.prepare import FloatModel, model_source, prepare
from quantry.recipe import (
    EmitOptions,
    FixNeuron,
    Format,
    ObserveOptions,
    PrepareOptions,
    Qdq,
    QOperator,
    Recipe,
    VitisDialect,
    VitisQdq,
    find_preset,
)
from quantry.scale import scale

FORMATS = [*map(VitisQdq, VitisDialect), FixNeuron(), QOperator()]
XINT8 = find_preset("XINT8").recipe
SAMPLES = 2


@cache
def observed() -> tuple[FloatModel, Statistics]:
    model = prepare(model_source(MODEL_PATH), PrepareOptions())
    inputs = [
        {INPUT_NAME: image[INPUT_NAME] if isinstance(image, dict) else image} for image in calibration_inputs(SAMPLES)
    ]
    return model, observe(model, calibration_data(inputs, model.inputs), ObserveOptions())


@cache
def outputs(recipe: Recipe, format_: Format) -> np.ndarray:
    model, statistics = observed()
    planned = plan(model, recipe.plan)
    params = scale(model, statistics, planned, recipe.scale)
    session = simulation_session(emit(model, planned, params, EmitOptions(format_), {}).to_bytes(), threads=1)
    sample = np.random.default_rng(5).uniform(0, 255, (1, 3, 128, 128)).astype(np.float32)
    return run_session(session, {INPUT_NAME: sample})["detections"]


@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_power_of_two_plan_gives_identical_outputs_in_every_format(format_: Format) -> None:
    np.testing.assert_array_equal(outputs(XINT8, format_), outputs(XINT8, Qdq()))


@pytest.mark.parametrize("format_", [*map(VitisQdq, VitisDialect), QOperator()], ids=str)
def test_float_scale_plan_gives_the_same_outputs_in_every_format(format_: Format) -> None:
    recipe = find_preset("U8S8_AAWS").recipe
    expected, actual = outputs(recipe, Qdq()), outputs(recipe, format_)
    if isinstance(format_, QOperator):
        # Kernels round once more or less than float operators do; single steps inside the network reach the output.
        noise = 10 * np.log10((expected**2).sum() / max(float(((expected - actual) ** 2).sum()), 1e-30))
        assert noise > 35
    else:
        np.testing.assert_array_equal(actual, expected)


def test_fused_activations_that_integer_kernels_lack_stay_float_and_agree() -> None:
    recipe = replace(XINT8, plan=replace(XINT8.plan, fused_activations=("Relu", "Clip", "LeakyRelu", "PRelu")))
    np.testing.assert_array_equal(outputs(recipe, QOperator()), outputs(recipe, Qdq()))
