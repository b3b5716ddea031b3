"""The teacher computes the function of the user's model, even if operators were converted for an NPU."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_nets import SmallNet, batches

from quantry.recipe import CrossLayer, EqualizeOptions, NpuConversions, PrepareOptions, Recipe, resolve_recipe
from quantry.torchfront import (
    DistillationLoss,
    QatOptions,
    QuantizedModule,
    capture,
    float_copy,
    float_teacher,
    qat,
    quantize_graph,
)


class Converted(nn.Module):
    """Has everything that conversions change: SiLU, LeakyRelu, Clip, and a mean of 25 values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.third = nn.Conv2d(8, 8, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.first(2 * x), 0.1)
        x = functional.silu(4 * self.second(x))
        x = self.third(x).clamp(-0.7, 1.3)
        return functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1)), 5)


def quantized_as(model: nn.Module, recipe: Recipe) -> QuantizedModule:
    return quantize_graph(capture(model, batches()[0]), batches(), recipe)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return replace(resolve_recipe("XINT8")[0], prepare=PrepareOptions(npu=NpuConversions(clip=True)))


@pytest.mark.parametrize("net", [SmallNet, Converted])
def test_teacher_is_the_model_before_conversions(net: type[nn.Module], recipe: Recipe) -> None:
    model, x = net().eval(), batches(1, 3)[0]
    module = quantized_as(model, recipe)
    assert module.definition.original_nodes
    assert module.definition.original_weights  # factors after pools
    for one in (module, pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            torch.testing.assert_close(float_teacher(one)(x), model(x), rtol=1e-4, atol=1e-5)
    assert "HardSigmoid" in {node.op_type for node in module.definition.model.model.graph}


class Bounded(nn.Module):
    """Has Clip(0, 6) between layers that equalization scales, and channels with very different ranges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.Linear(8, 5)
        with torch.no_grad():
            self.first.weight.mul_(torch.logspace(-0.5, 1.5, 8)[:, None, None, None])
            self.second.weight.mul_(5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.second(functional.relu6(self.first(x))))
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("stage", ["prepare", "equalize"])
def test_teacher_cuts_off_again_what_relu_let_pass(stage: str) -> None:
    start = resolve_recipe("XINT8")[0]
    if stage == "prepare":
        recipe = replace(start, prepare=PrepareOptions(clip6_to_relu=True), equalize=EqualizeOptions(CrossLayer()))
    else:
        recipe = replace(start, equalize=EqualizeOptions(CrossLayer(clip6_to_relu=True)))
    model, x = Bounded().eval(), batches(1, 3)[0]
    module = quantized_as(model, recipe)
    assert {original.op_type for original in module.definition.original_nodes.values()} >= {"Clip"}
    for one in (module, pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            torch.testing.assert_close(float_teacher(one)(x), model(x), rtol=1e-4, atol=1e-5)
            assert (float_copy(one)(x) - model(x)).abs().max() > 0.1  # without the bounds


@pytest.mark.parametrize(
    ("options", "held_out"),
    [
        (QatOptions(steps=16, learning_rate=1e-2, decay=None), []),  # the last step, trained on all
        (QatOptions(steps=100), None),
    ],
    ids=["unchecked", "default"],
)
def test_training_without_labels_recovers_what_conversions_cost(
    recipe: Recipe, options: QatOptions, held_out: list[Tensor] | None
) -> None:
    model, x, unseen = SmallNet().eval(), torch.cat(batches()), torch.cat(batches(40)[4:])
    module = quantized_as(model, recipe)

    def error(x: Tensor) -> float:
        with torch.no_grad():
            return float((module(x) - model(x)).square().mean())

    assert set(DistillationLoss(module, tensors="all").tensors) <= set(float_teacher(module).layout.quantizers)
    before, before_unseen = error(x), error(unseen)
    qat(module, batches(), options=options, held_out=held_out)
    assert error(x) < 0.5 * before
    assert error(unseen) < 0.6 * before_unseen
