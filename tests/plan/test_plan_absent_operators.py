import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import quantry
from quantry.errors import SelectionError
from quantry.recipe import PlanOptions, Recipe, Selection


def network() -> onnx.ModelProto:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Conv (x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w"))
    return model


@pytest.mark.parametrize("preset", ["INT8_TRANSFORMER_DEFAULT", "INT16_TRANSFORMER_DEFAULT", "MATMUL_NBITS"])
def test_network_without_matrix_products_stays_float_with_a_note(preset: str) -> None:
    result = quantry.quantize(network(), recipe=preset, store=None)
    assert not result.plan.quantized_nodes
    assert any("nothing was quantized" in str(note) for note in result.notes)
    assert [node.reason for node in result.declined] == ["not among the operator types to quantize"]


def test_unknown_operator_type_is_still_refused() -> None:
    recipe = Recipe(plan=PlanOptions(selection=Selection(operators=("Convv",))))
    with pytest.raises(SelectionError, match="did you mean 'Conv'"):
        quantry.quantize(network(), [np.ones((1, 2, 4, 4), np.float32)], recipe, store=None)
