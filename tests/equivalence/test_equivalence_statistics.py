"""Statistics of every tensor, compared with NumPy on a plain run that exposes all tensors."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from equivalence_models import cnn, samples, transformer

from quantry.data.open_data import calibration_data
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.observe import observe
from quantry.prepare import prepare
from quantry.recipe import ObserveOptions, PrepareOptions

Model = Callable[[], onnx.ModelProto]
Samples = list[dict[str, np.ndarray]]


def plain_run(model: bytes, data: Samples) -> list[dict[str, np.ndarray]]:
    """Return every tensor of the model for each sample."""
    proto = onnx.load_from_string(model)
    known = {value.name for value in proto.graph.output}
    names = [name for node in proto.graph.node for name in node.output if name and name not in known]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    shown = [output.name for output in session.get_outputs()]
    return [{**sample, **dict(zip(shown, session.run(shown, sample), strict=True))} for sample in data]


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the model a data-dependent batch, so that no later shape is known in advance."""
    (value,) = model.graph.input
    make = onnx.helper.make_node
    added = [
        make("Flatten", [value.name], ["flat_rows"]),
        make("ArgMax", ["flat_rows"], ["largest"], axis=1, keepdims=0),
        make("GreaterOrEqual", ["largest", "zero"], ["always"]),
        make("Compress", [value.name, "always"], ["chosen"], axis=0),
    ]
    for node in model.graph.node:
        node.input[:] = ["chosen" if name == value.name else name for name in node.input]
    for node in reversed(added):
        model.graph.node.insert(0, node)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "zero"))
    return model


@pytest.mark.parametrize("shapes", ["inferred", "unknown"])
@pytest.mark.parametrize("build", [cnn, transformer])
def test_statistics_of_every_tensor_equal_those_of_a_plain_run(build: Model, shapes: str) -> None:
    model = build() if shapes == "inferred" else without_shapes(build())
    data = [*samples(build(), 2), *samples(build(), 1, batch=3)]
    prepared = prepare(model_source(model), PrepareOptions())
    statistics = observe(prepared, calibration_data(data, prepared.inputs), ObserveOptions())
    runs = plain_run(serialize(prepared.model), data)
    floats = [name for name, array in runs[0].items() if array.dtype == np.float32]
    assert set(statistics.tensors) == set(floats)
    for name in floats:
        values = np.concatenate([run[name].ravel() for run in runs])
        observed = statistics.tensors[name]
        assert observed.count == values.size, name
        np.testing.assert_allclose(
            (observed.minimum, observed.maximum),
            (values.min(), values.max()),
            rtol=1e-5,
            atol=1e-5 * np.abs(values).max(),
            err_msg=name,
        )
