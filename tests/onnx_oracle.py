"""Compare models with onnxruntime: the same inputs must give the same outputs before and after a pass."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper, parser

from quantry.graph.save import serialize


def from_text(text: str, /, **weights: np.ndarray) -> onnx.ModelProto:
    """Parse ONNX text and add weights as initializers of the main graph."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return proto


def graph_from_text(text: str, /, **weights: np.ndarray) -> ir.Model:
    return ir.from_proto(from_text(text, **weights))


def run(model: onnx.ModelProto | ir.Model | bytes | str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs by name, computed without any optimisation of the graph."""
    content = serialize(model) if isinstance(model, ir.Model) else model
    content = content.SerializeToString() if isinstance(content, onnx.ModelProto) else content
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def random_feeds(model: onnx.ModelProto | ir.Model, seed: int = 0, dynamic: int = 2) -> dict[str, np.ndarray]:
    """Return random values for every input; unknown axes get length ``dynamic``."""
    graph = model.graph if isinstance(model, ir.Model) else ir.from_proto(model).graph
    random = np.random.default_rng(seed)
    feeds = {}
    for value in graph.inputs:
        if value.name in graph.initializers:
            continue
        shape = [dim if isinstance(dim, int) else dynamic for dim in value.shape]
        dtype = value.dtype.numpy()
        if np.issubdtype(dtype, np.floating):
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = random.integers(0, 2, shape).astype(dtype)
    return feeds


def assert_same_outputs(before: onnx.ModelProto | ir.Model, after: ir.Model, rtol: float = 0.0, seed: int = 0) -> None:
    feeds = random_feeds(before, seed)
    expected, actual = run(before, feeds), run(after, feeds)
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=rtol * np.abs(array).max(initial=0.0))


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]
