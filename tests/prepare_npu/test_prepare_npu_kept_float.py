"""What the user keeps in float computes what it did: conversions for the NPU pass over it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper, parser

from quantry.data.open_data import calibration_data
from quantry.errors import SelectionError
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.memo import Memo
from quantry.pipeline import Stages, run_prepare, run_quantize
from quantry.recipe import LayerTypes, Recipe, Selection, Subgraph, resolve_recipe

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 4, 6, 6] x) => (float[1, 8, 1, 1] y)
{
    [b1_conv] c1 = Conv (x, w1)
    [b1_gate] s1 = Sigmoid (c1)
    [b1_leaky] l1 = LeakyRelu <alpha = 0.1> (s1)
    [b2_split] h1, h2 = Split <axis = 1> (l1)
    [b2_conv] c2 = Conv (h1, w2)
    [b2_gate] s2 = Sigmoid (c2)
    [b2_leaky] l2 = LeakyRelu <alpha = 0.1> (s2)
    [b2_join] j = Concat <axis = 1> (l2, h2)
    [b2_pool] y = GlobalAveragePool (j)
}
"""
B2 = {"b2_split": "Split", "b2_gate": "Sigmoid", "b2_leaky": "LeakyRelu", "b2_pool": "GlobalAveragePool"}


@pytest.fixture(scope="module")
def model() -> ModelProto:
    proto = parser.parse_model(NET)
    generator = np.random.default_rng(0)
    for name, shape in (("w1", (8, 4, 1, 1)), ("w2", (4, 4, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name))
    return proto


Quantize = Callable[..., Stages]


@pytest.fixture
def quantize(model: ModelProto) -> Quantize:
    def run(selection: Selection, layers: tuple[LayerTypes, ...] = ()) -> Stages:
        recipe, _ = resolve_recipe("XINT8")
        recipe = replace(recipe, plan=replace(recipe.plan, selection=selection, layers=layers))
        return stages(model, recipe)

    return run


def stages(model: ModelProto, recipe: Recipe) -> Stages:
    memo = Memo(None)
    prepared = run_prepare(model_source(model), recipe, memo)
    samples = [{"x": np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)}]
    return run_quantize(prepared, calibration_data(samples, prepared.value.inputs), recipe, memo)


def nodes(found: Stages) -> dict[str, ir.Node]:
    return {node.name or "": node for node in found.equalized.value.model.graph}


@pytest.mark.parametrize(
    "selection",
    [
        Selection(exclude=("^b2_.*",)),
        Selection(include=("^b1_.*",)),
        Selection(output_nodes=("b1_leaky",)),
        Selection(exclude_subgraphs=(Subgraph(("b2_split",), ("b2_pool",)),)),
    ],
)
def test_what_the_selection_keeps_in_float_is_not_converted(quantize: Quantize, selection: Selection) -> None:
    converted = nodes(quantize(selection))
    assert {name: converted[name].op_type for name in B2} == B2
    assert converted["b2_leaky"].attributes["alpha"].as_float() == pytest.approx(0.1)
    assert not [name for name in converted if name.startswith("b2_") and "npu" in name]
    # The rest is converted as ever.
    assert converted["b1_gate"].op_type == "HardSigmoid"
    assert "b1_gate_npu_factor" in converted
    assert converted["b1_leaky"].attributes["alpha"].as_float() == 26 / 256


def test_a_model_excluded_as_a_whole_computes_what_it_did(model: ModelProto, quantize: Quantize) -> None:
    written = serialize(quantize(Selection(exclude=("^",))).quantized.value.model)
    x = np.random.default_rng(2).normal(size=(1, 4, 6, 6)).astype(np.float32)
    sessions = [ort.InferenceSession(content) for content in (model.SerializeToString(), written)]
    expected, found = (session.run(None, {"x": x})[0] for session in sessions)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_is_before_the_input_nodes_is_not_converted(quantize: Quantize) -> None:
    converted = nodes(quantize(Selection(input_nodes=("b2_conv",))))
    assert converted["b1_gate"].op_type == "Sigmoid"
    assert converted["b2_gate"].op_type == "HardSigmoid"


def test_an_excluded_operator_type_is_not_converted(quantize: Quantize) -> None:
    converted = nodes(quantize(Selection(exclude_operators=("Sigmoid",))))
    assert {converted[name].op_type for name in ("b1_gate", "b2_gate")} == {"Sigmoid"}


def test_a_layer_kept_in_float_is_not_converted(quantize: Quantize) -> None:
    converted = nodes(quantize(Selection(), (LayerTypes(match=("b2_gate",), keep_float=True),)))
    assert converted["b2_gate"].op_type == "Sigmoid"
    assert converted["b1_gate"].op_type == "HardSigmoid"


def test_names_that_conversions_make_can_be_excluded(quantize: Quantize) -> None:
    found = quantize(Selection(exclude=("b1_gate_npu_factor", "b2_gate")))
    assert nodes(found)["b2_gate"].op_type == "Sigmoid"
    declined = {entry.node: entry.reason for entry in found.plan.value.declined}
    assert declined["b1_gate_npu_factor"] == "excluded by its name"


def test_a_node_excluded_together_with_what_its_conversion_makes_is_converted(quantize: Quantize) -> None:
    converted = nodes(quantize(Selection(exclude=("b2_gate", "b2_gate_npu_factor"))))
    assert converted["b2_gate"].op_type == "HardSigmoid"


def test_operator_types_to_quantize_are_those_after_conversion(quantize: Quantize) -> None:
    found = quantize(Selection(operators=("Conv", "HardSigmoid")))
    assert nodes(found)["b1_gate"].op_type == "HardSigmoid"
    assert "b1_gate" in found.plan.value.quantized_nodes


def test_a_misspelt_exclusion_is_still_an_error(quantize: Quantize) -> None:
    with pytest.raises(SelectionError, match="b2_gaet"):
        quantize(Selection(exclude=("b2_conv", "b2_gaet")))
