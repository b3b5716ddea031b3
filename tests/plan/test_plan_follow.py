"""Names of nodes of the user's model that preparation folds or removes."""

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import quantry
from quantry.errors import SelectionError
from quantry.onnx import Config, ModelQuantizer, QuantizationConfig
from quantry.recipe import (
    DataType,
    LayerTypes,
    PlanOptions,
    Recipe,
    Selection,
    Subgraph,
    TensorSpec,
    TensorTypes,
)

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 3, 8, 8] image) => (float[2, 5] scores)
{
    [conv1] c1 = Conv <pads: ints = [1, 1, 1, 1]> (image, w1)
    [bn1] n1 = BatchNormalization (c1, ones, zeros, zeros, ones)
    [relu1] r1 = Relu (n1)
    [conv2] c2 = Conv <pads: ints = [1, 1, 1, 1]> (r1, w2)
    [bn2] n2 = BatchNormalization (c2, ones, zeros, zeros, ones)
    [relu2] r2 = Relu (n2)
    [same] i1 = Identity (r2)
    [shape] s1 = Shape (i1)
    [first] zero = Constant <value_ints = [0]> ()
    [gather] g1 = Gather (s1, zero)
    [join] j1 = Concat <axis: int = 0> (g1, rest)
    [flat] f1 = Reshape (i1, j1)
    [final] scores = MatMul (f1, w3)
}
"""


SHAPES = {"w1": (4, 3, 3, 3), "w2": (4, 4, 3, 3), "w3": (256, 5)}


def network() -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights |= {"ones": np.full(4, 1.5, np.float32), "zeros": np.full(4, 0.1, np.float32)}
    weights["rest"] = np.array([-1], np.int64)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def data() -> list[dict[str, Any]]:
    return [{"image": np.random.default_rng(5).normal(size=(2, 3, 8, 8)).astype(np.float32)}]


def quantized(**plan: Any) -> quantry.QuantizationResult:
    return quantry.quantize(network(), data(), Recipe(plan=PlanOptions(**plan)), store=None)


def floats(result: quantry.QuantizationResult) -> set[str]:
    return {entry.node for entry in result.declined}


@pytest.mark.parametrize(
    ("named", "taken"),
    [("bn1", "conv1"), ("n2", "conv2"), ("^bn", "conv1"), ("bn*", "conv2")],
)
def test_folded_node_is_followed_to_where_it_is_now(named: str, taken: str) -> None:
    result = quantized(selection=Selection(exclude=(named,)))
    assert taken in floats(result)
    assert "final" not in floats(result)
    assert any(repr(named) in str(note) and repr(taken) in str(note) for note in result.notes)
    assert result.recipe.plan.selection.exclude[0] in ("conv1", "conv2")


@pytest.mark.parametrize("named", ["shape", "gather", "join", "same", "i1", "zero"])
def test_node_of_which_nothing_is_left_is_accepted_with_a_note(named: str) -> None:
    plain = quantized()
    result = quantized(selection=Selection(exclude=(named,)))
    assert floats(result) == floats(plain)
    assert any(repr(named) in str(note) and "nothing is left" in str(note) for note in result.notes)


def test_operator_type_that_preparation_folds_is_accepted() -> None:
    result = quantized(selection=Selection(exclude_operators=("BatchNormalization",)))
    assert floats(result) == floats(quantized())
    assert any("BatchNormalization" in str(note) for note in result.notes)


def test_ends_of_the_quantized_part_move_to_the_next_node() -> None:
    begin = quantized(selection=Selection(input_nodes=("bn2",)))
    assert {"conv1", "relu1"} <= floats(begin)
    assert "conv2" not in floats(begin)
    end = quantized(selection=Selection(output_nodes=("same",)))
    assert {"flat", "final"} <= floats(end)
    assert "conv2" not in floats(end)
    between = quantized(selection=Selection(exclude_subgraphs=(Subgraph(("bn2",), ("same",)),)))
    assert {"conv2", "relu2"} <= floats(between)
    assert "conv1" not in floats(between)


def test_types_of_layers_and_tensors_follow() -> None:
    wide = TensorSpec(DataType.INT16)
    layers = quantized(layers=(LayerTypes(("bn2",), activation=wide), LayerTypes(("shape",), keep_float=True)))
    assert layers.plan.activations["r1"].spec.dtype is DataType.INT16
    tensors = quantized(tensors=(TensorTypes(("i1", "r1"), wide),))
    assert tensors.plan.activations["r1"].spec.dtype is DataType.INT16


def test_unknown_names_and_an_empty_inclusion_still_raise() -> None:
    with pytest.raises(SelectionError, match="'bn9'"):
        quantized(selection=Selection(exclude=("bn9",)))
    with pytest.raises(SelectionError, match="'shape'"):
        quantized(selection=Selection(include=("shape",)))


def test_facade_takes_names_of_the_users_model(caplog: pytest.LogCaptureFixture) -> None:
    config = QuantizationConfig(nodes_to_exclude=["bn1", "shape", "gather"], output_nodes=["same"])
    with caplog.at_level(logging.WARNING, "quantry"):
        model = ModelQuantizer(Config(config)).quantize_model(network(), None, _Reader())
    assert model is not None
    conv = next(node for node in model.graph.node if node.name == "conv1")
    assert conv.input[0] == "image"
    assert "'bn1' of the model is now part of 'conv1'" in caplog.text
    assert "'gather' of the model is not needed" in caplog.text


class _Reader:
    def __init__(self) -> None:
        self._rest = iter(data())

    def get_next(self) -> Any:
        return next(self._rest, None)
