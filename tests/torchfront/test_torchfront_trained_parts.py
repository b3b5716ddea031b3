"""Tuning steps train the same graph that users train: both compute the same bits, quantized and float."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch_nets import SmallNet

from quantry.execute.trainable_graph import TrainableGraph, Trained
from quantry.recipe import DataType, PerChannel, PlanOptions, PowerOfTwoScale, Recipe, TensorSpec
from quantry.torchfront import QuantizedModule, capture, enable_quantizers, learn_scales, quantize_graph

RECIPES = {
    **{name: name for name in ("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "BF16")},
    "INT4": Recipe(
        plan=PlanOptions(
            activation=TensorSpec(DataType.UINT8, symmetric=False),
            weight=TensorSpec(DataType.INT4, granularity=PerChannel()),
        )
    ),
    "shifts": Recipe(plan=PlanOptions(activation=TensorSpec(DataType.INT8, scale=PowerOfTwoScale()))),
}


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 12, 12, generator=generator) for _ in range(3)]


def graph_of(module: QuantizedModule, trained: Trained) -> TrainableGraph:
    """Return the graph of a module's definition as tuning steps build it, with folded normalizations."""
    definition = replace(module.definition, batch_norms={}, arrays={})
    graph = definition.model.model.graph
    return TrainableGraph(definition, list(graph), [value.name or "" for value in graph.outputs], trained)


@pytest.mark.parametrize("seed", [0, 3, 7])
@pytest.mark.parametrize("name", RECIPES)
def test_tuning_and_modules_compute_the_same_bits(name: str, seed: int) -> None:
    pictures = drawn(seed)
    module = quantize_graph(capture(SmallNet().eval(), pictures[0]), pictures, RECIPES[name])
    graph = graph_of(module, Trained(weights=False, biases=False))
    feed = {module.definition.model.inputs[0].name: pictures[-1]}
    for quantized in (True, False):
        enable_quantizers(module, enabled=quantized)
        with torch.no_grad():
            (ours,), theirs = graph.run(feed, quantized=quantized).values(), module(pictures[-1])
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["XINT8", "S8S8_AAWS"])
def test_learned_scales_start_and_end_alike(name: str) -> None:
    pictures = drawn(0)
    module = quantize_graph(capture(SmallNet().eval(), pictures[0]), pictures, RECIPES[name])
    graph = graph_of(module, Trained(weights=False, biases=False, scales=True))
    learn_scales(module, "tqt")
    feed = {module.definition.model.inputs[0].name: pictures[-1]}
    (output,) = graph.run(feed, quantized=True).values()
    assert torch.equal(output, module(pictures[-1]))
    output.square().sum().backward()
    module(pictures[-1]).square().sum().backward()
    for tensor, path in module.layout.quantizers.items():
        if tensor in graph.log2_scales:
            theirs = module.get_submodule(path).log2_scale.grad
            torch.testing.assert_close(graph.log2_scales[tensor].grad, theirs, rtol=1e-4, atol=1e-5)
