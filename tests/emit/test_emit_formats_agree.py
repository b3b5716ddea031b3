"""Each 8-bit format of the same plan gives identical outputs in the safe session, on a trained model."""

from functools import cache

import numpy as np
import onnx
import pytest

from quantry.data.open_data import calibration_data
from quantry.demo import INPUT_NAME, MODEL_PATH, calibration_inputs
from quantry.emit import emit
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.observe import Statistics, observe
from quantry.plan import plan
from quantry.prepare import prepare
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
from quantry.runtime.sessions import run_session, simulation_session
from quantry.scale import scale

XINT8 = find_preset("XINT8").recipe
FLOAT_SCALES = find_preset("U8S8_AAWS").recipe
CALIBRATION = 2
INPUTS = {
    "scene": calibration_inputs(CALIBRATION + 1)[-1][INPUT_NAME],
    "noise": np.random.default_rng(5).uniform(0, 255, (1, 3, 128, 128)).astype(np.float32),
}


@cache
def observed() -> tuple[FloatModel, Statistics]:
    model = prepare(model_source(MODEL_PATH), PrepareOptions())
    data = calibration_data(calibration_inputs(CALIBRATION), model.inputs)
    return model, observe(model, data, ObserveOptions())


@cache
def written(recipe: Recipe, format_: Format) -> bytes:
    model, statistics = observed()
    planned = plan(model, recipe.plan)
    params = scale(model, statistics, planned, recipe.scale)
    return emit(model, planned, params, EmitOptions(format_), {}).to_bytes()


@cache
def outputs(recipe: Recipe, format_: Format) -> np.ndarray:
    session = simulation_session(written(recipe, format_), threads=1)
    return np.concatenate([run_session(session, {INPUT_NAME: image})["detections"] for image in INPUTS.values()])


@pytest.mark.parametrize("format_", [*map(VitisQdq, VitisDialect), FixNeuron(), QOperator()], ids=str)
def test_power_of_two_plan_gives_identical_outputs_in_every_format(format_: Format) -> None:
    np.testing.assert_array_equal(outputs(XINT8, format_), outputs(XINT8, Qdq()))


def test_float_scale_plan_gives_identical_outputs_in_a_vendors_dialect() -> None:
    np.testing.assert_array_equal(outputs(FLOAT_SCALES, VitisQdq(VitisDialect.VAI)), outputs(FLOAT_SCALES, Qdq()))


def run_exposed(model: onnx.ModelProto, names: set[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(names))
    return run_session(simulation_session(model.SerializeToString(), threads=1), feeds)


def cut_before_every_node(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Let every node read given tensors instead of what the nodes before it make; return what to feed."""
    fed = {name for node in model.graph.node for name in node.input if name in values}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = f"fed_{name}" if name in fed else name
    for name in sorted(fed):
        dtype = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(f"fed_{name}", dtype, values[name].shape))
    return {f"fed_{name}": values[name] for name in fed}


@pytest.mark.parametrize("image", INPUTS.values(), ids=INPUTS)
def test_every_integer_kernel_is_within_one_step_of_its_pairs(image: np.ndarray) -> None:
    """Each node gets the integers of the Q/DQ model, so that one node's step cannot hide or excuse another's."""
    pairs, integers = (onnx.load_from_string(written(FLOAT_SCALES, format_)) for format_ in (Qdq(), QOperator()))
    quantized = {node.output[0] for node in pairs.graph.node if node.op_type == "QuantizeLinear"}
    quantized &= {name for node in integers.graph.node for name in node.output}
    expected = run_exposed(pairs, quantized, {INPUT_NAME: image})
    feeds = cut_before_every_node(integers, {name: expected[name] for name in quantized})
    actual = run_exposed(integers, quantized, {INPUT_NAME: image, **feeds})
    steps = {name: int(np.abs(expected[name].astype(int) - actual[name].astype(int)).max()) for name in quantized}
    assert len(steps) > 250
    assert max(steps.values()) <= 1
