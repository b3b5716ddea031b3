"""Multiplications of layers, against numbers counted by hand."""

import onnx_ir as ir
import pytest
from tests.onnx_oracle import from_text

from quantry.graph.multiplications import elements, multiplications

CASES = {
    # 4 x 4 results of 8 channels, each from 3 x 3 x 2 inputs of its group.
    "grouped convolution": ("float[1,4,6,6] x, float[8,2,3,3] w", "Conv <group = 2> (x, w)", "[1,8,4,4]", 128 * 18),
    # Each of 4 x 3 x 3 inputs is multiplied with 2 x 2 x 2 weights.
    "transposed": ("float[1,4,3,3] x, float[4,2,2,2] w", "ConvTranspose(x, w)", "[1,2,4,4]", 36 * 8),
    "transposed operand": ("float[5,2] x, float[5,7] w", "Gemm <transA = 1> (x, w)", "[2,7]", 14 * 5),
    "batch of products": ("float[3,2,5] x, float[5,7] w", "MatMul(x, w)", "[3,2,7]", 42 * 5),
    "unknown batch": ("float[N,2,5] x, float[5,7] w", "MatMul(x, w)", "[N,2,7]", 14 * 5),
    "no layer": ("float[2,3] x, float[2,3] w", "Add(x, w)", "[2,3]", 0),
}


@pytest.mark.parametrize(("inputs", "node", "shape", "expected"), CASES.values(), ids=CASES)
def test_count(inputs: str, node: str, shape: str, expected: int) -> None:
    proto = from_text(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float{shape} y) {{ y = {node} }}')
    graph = ir.from_proto(proto).graph
    assert multiplications(graph[0]) == expected


def test_elements_of_unknown_axes_count_once() -> None:
    value = ir.Value(name="x", shape=ir.Shape(["N", 3, 4]))
    assert elements(value) == 12
