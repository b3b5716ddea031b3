import emit_cases as cases
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.inliner import inline_local_functions

from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    DerivedBias,
    EmitOptions,
    FixNeuron,
    OwnBias,
    PlanOptions,
    Qdq,
    Recipe,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)
from quantry.runtime.sessions import deployment_session, run_session

TYPES = {
    "xint8": cases.XINT8,
    "u8s8": cases.types(DataType.UINT8, DataType.INT8),
    "s8s8-per-channel": cases.types(DataType.INT8, DataType.INT8, per_channel=True),
    "s16s8": cases.types(DataType.INT16, DataType.INT8, symmetric=True),
    "u16s16": cases.types(DataType.UINT16, DataType.INT16),
    "u8s4": cases.types(DataType.UINT8, DataType.INT4, per_channel=True),
}
OPERATOR = {
    VitisDialect.VAI: ("com.vai.quantize", "VAIQuantizeLinear"),
    VitisDialect.VITIS: ("com.vai.quantize", "VitisQuantizeLinear"),
    VitisDialect.QUARK: ("com.amd.quark", "ExtendedQuantizeLinear"),
    VitisDialect.CONTRIB: ("com.microsoft", "QuantizeLinear"),
}


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("recipe", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("dialect", VitisDialect)
def test_dialect_computes_what_qdq_computes(dialect: VitisDialect, recipe: Recipe, opset: int) -> None:
    model = cases.emitted(recipe, VitisQdq(dialect), opset)
    onnx.checker.check_model(cases.proto(model), full_check=True)
    expected, actual = cases.outputs(cases.emitted(recipe, Qdq(), opset)), cases.outputs(model)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


@pytest.mark.parametrize("dialect", VitisDialect)
def test_dialect_writes_its_operators_and_keeps_the_opset(dialect: VitisDialect) -> None:
    model = cases.proto(cases.emitted(TYPES["s16s8"], VitisQdq(dialect), opset=13))
    written = {(node.domain, node.op_type) for node in model.graph.node}
    assert OPERATOR[dialect] in written
    assert ("", "QuantizeLinear") not in written
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 13


@pytest.mark.parametrize("dialect", [VitisDialect.VAI, VitisDialect.VITIS])
def test_nodes_carry_bit_width_and_position_as_strings(dialect: VitisDialect) -> None:
    model = cases.proto(cases.emitted(TYPES["xint8"], VitisQdq(dialect)))
    scales = {
        entry.name: float(onnx.numpy_helper.to_array(entry))
        for entry in model.graph.initializer
        if "_scale" in entry.name
    }
    pairs = [node for node in model.graph.node if node.domain]
    assert pairs
    for node in pairs:
        attributes = {entry.name: entry.s for entry in node.attribute}
        assert attributes["bit_width"] == b"8"
        assert 2.0 ** -int(attributes["pos"]) == scales[node.input[1]]


@pytest.mark.parametrize("dialect", [VitisDialect.VAI, VitisDialect.VITIS, VitisDialect.QUARK])
def test_inlined_functions_leave_standard_operators_and_the_same_outputs(dialect: VitisDialect) -> None:
    model = cases.emitted(TYPES["u8s8"], VitisQdq(dialect))
    inlined = inline_local_functions(cases.proto(model))
    assert {node.domain for node in inlined.graph.node} == {""}
    for name, values in cases.outputs(model).items():
        np.testing.assert_array_equal(cases.outputs(inlined.SerializeToString())[name], values)


@pytest.mark.parametrize("format_", [*map(VitisQdq, VitisDialect), FixNeuron()], ids=str)
@pytest.mark.parametrize("opset", [17, 21])
def test_vendor_model_loads_fully_optimised(format_: VitisQdq | FixNeuron, opset: int) -> None:
    model = cases.emitted(cases.XINT8, format_, opset)
    session = deployment_session(model.to_bytes(), threads=1)
    expected = cases.outputs(model)
    for name, values in run_session(session, cases.samples()[0]).items():
        assert cases.sqnr(expected[name][:2], values) > 30


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_fix_neuron_computes_what_qdq_computes(opset: int) -> None:
    model = cases.emitted(cases.XINT8, FixNeuron(), opset)
    onnx.checker.check_model(cases.proto(model), full_check=True)
    expected, actual = cases.outputs(cases.emitted(cases.XINT8, Qdq(), opset)), cases.outputs(model)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


@pytest.mark.parametrize("weight", [DataType.INT4, DataType.UINT8, DataType.INT16])
@pytest.mark.parametrize("activation", [DataType.INT8, DataType.UINT16, DataType.UINT4])
def test_fix_neuron_carries_every_width(activation: DataType, weight: DataType) -> None:
    """Unsigned types are written as signed ones, with a derived bias where the accumulator has room for it."""
    specs = [TensorSpec(dtype, scale=cases.POWER_OF_TWO) for dtype in (activation, weight, DataType.INT16)]
    narrow = activation.bits + weight.bits <= 24
    recipe = Recipe(plan=PlanOptions(specs[0], specs[1], DerivedBias() if narrow else OwnBias(specs[2])))
    expected, actual = (cases.outputs(cases.emitted(recipe, format_)) for format_ in (Qdq(), FixNeuron()))
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


def test_fix_neuron_stores_weights_as_floats_on_their_grid() -> None:
    model = cases.proto(cases.emitted(cases.XINT8, FixNeuron()))
    node = next(node for node in model.graph.node if node.name == "stem_w_FixNeuron")
    assert (node.domain, node.op_type) == ("ai.onnx.contrib", "FixNeuron")
    attributes = {entry.name: entry.s for entry in node.attribute}
    assert attributes["bit_width"] == b"8"
    values = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}
    levels = values[node.input[0]] * 2.0 ** int(attributes["pos"])
    assert values[node.input[0]].dtype == np.float32
    np.testing.assert_array_equal(levels, np.rint(levels))
    assert np.abs(levels).max() <= 128
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in model.graph.node}


def test_fix_neuron_refuses_other_scales_before_any_work() -> None:
    with pytest.raises(RecipeError, match=r"plan\.activation\.scale must be PowerOfTwoScale.*VitisQdq"):
        Recipe(plan=TYPES["u8s8"].plan, emit=EmitOptions(FixNeuron()))


@pytest.mark.parametrize("format_", [*map(VitisQdq, VitisDialect), FixNeuron()], ids=str)
def test_same_plan_gives_the_same_bytes(format_: VitisQdq | FixNeuron) -> None:
    assert cases.emitted(cases.XINT8, format_).to_bytes() == cases.emitted(cases.XINT8, format_).to_bytes()


def test_onnxruntime_refuses_the_vendor_operator_without_its_function() -> None:
    """Without this, the tests above would not show that the functions are what runs."""
    model = cases.proto(cases.emitted(cases.XINT8, VitisQdq(VitisDialect.VAI)))
    del model.functions[:]
    with pytest.raises(Exception, match="is not a registered function/op"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
