"""The quantized graph in torch computes what the deployed model computes, biases included."""

import numpy as np
import onnx_ir as ir
import pytest
import torch

from quantry.execute.graph_builder import GraphDefinition
from quantry.execute.quantized_view import QuantizedView
from quantry.execute.trainable_graph import TrainableGraph, Trained
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import DerivedBiasPlan, OwnRange, QuantPlan, WeightPlan
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, TensorSpec

BIAS = np.array([0.3, -0.37, 1e12], np.float32)


def params(scale: float, dtype: DataType = DataType.INT8) -> TensorParams:
    return TensorParams(dtype, np.float32(scale), np.int64(0))


@pytest.fixture
def model() -> ir.Model:
    """Return ``y = Gemm(x, w, b)`` with zero weights, so that the output is the bias."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 2] x) => (float[1, 3] y)
    <float[2, 3] w = {0, 0, 0, 0, 0, 0}, float[3] b = {0, 0, 0}>
    { [gemm] y = Gemm (x, w, b) }
    """
    found = ir.from_onnx_text(text)
    found.graph.initializers["b"].const_value = ir.Tensor(BIAS, name="b")
    next(iter(found.graph)).name = "gemm"
    return found


PLAN = QuantPlan(
    activations={"x": OwnRange(TensorSpec())},
    weights={"w": WeightPlan(TensorSpec(), users=("gemm",))},
    biases={"b": DerivedBiasPlan("x", "w")},
)
PARAMS = QuantParams({"x": params(0.5), "w": params(0.5), "b": params(0.25, DataType.INT32)})


def graph_of(model: ir.Model, trained: Trained) -> TrainableGraph:
    definition = GraphDefinition(model=FloatModel(model), plan=PLAN, params=PARAMS)
    return TrainableGraph(definition, list(model.graph), ["y"], trained)


def output(graph: TrainableGraph) -> torch.Tensor:
    return graph.run({"x": torch.zeros(1, 2)}, quantized=True)["y"][0]


def test_derived_bias_is_rounded_as_in_the_deployed_model(model: ir.Model) -> None:
    graph = graph_of(model, Trained(weights=False, biases=False))
    np.testing.assert_array_equal(output(graph).numpy(), QuantizedView(PLAN, PARAMS).round("b", BIAS))


def test_derived_bias_follows_trained_scales(model: ir.Model) -> None:
    graph = graph_of(model, Trained(weights=False, biases=False, scales=True))
    with torch.no_grad():
        graph.log2_scales["x"].fill_(1.0)
    trained = QuantizedView(PLAN, QuantParams({**PARAMS.tensors, **graph.trained_params()}))
    assert float(trained.params.tensors["b"].scale) == 1.0
    np.testing.assert_array_equal(output(graph).detach().numpy(), trained.round("b", BIAS))


def test_gradient_passes_the_rounding_of_a_bias_and_stops_where_it_is_clipped(model: ir.Model) -> None:
    graph = graph_of(model, Trained(weights=False))
    output(graph).sum().backward()
    np.testing.assert_array_equal(graph.constants["b"].grad.numpy(), [1.0, 1.0, 0.0])
