"""Channels are scaled by powers of two so that one scale per tensor costs the results least."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch_nets import SmallNet, batches

from quantry.errors import DataError, ModelError, RecipeError
from quantry.recipe import EqualizeOptions, Gptq, Recipe, SmoothQuant
from quantry.torchfront import (
    QuantizedModule,
    balance_channels,
    capture,
    choose_scales,
    export,
    float_copy,
    float_teacher,
    freeze,
    learn_scales,
    quantize_graph,
    tune_weights,
)

SPREAD = torch.tensor([4.0**-power for power in range(8)])


class Uneven(nn.Module):
    """Two layers around a function; the channels between them have very different ranges and equal importance."""

    def __init__(self, between: nn.Module, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.between = nn.Conv2d(3, width, 3, padding=1), between
        self.second = nn.Conv2d(width, 4, 1)
        with torch.no_grad():
            self.first.weight.mul_(SPREAD[:, None, None, None])
            self.first.bias.mul_(SPREAD)
            self.second.weight.div_(SPREAD[None, :, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))


class Joined(nn.Module):
    """A layer that reads the concatenation of two layers, one of them pooled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.left, self.right = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 5, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            self.right.weight.mul_(SPREAD[:5, None, None, None])
            self.last.weight[:, 3:].div_(SPREAD[None, :5, None, None])

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.max_pool2d(torch.relu(self.right(x)), 3, 1, 1)
        return self.last(torch.cat([self.left(x).relu(), pooled], 1))


def quantized_of(net: nn.Module, recipe: Recipe) -> QuantizedModule:
    return quantize_graph(capture(net.eval(), batches()[0]), batches(), recipe)


def distance(module: nn.Module, net: nn.Module) -> float:
    with torch.no_grad():
        return sum(float((module(x) - net(x)).square().mean()) for x in batches(2, 8))


def weights(module: QuantizedModule) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def same_in_float(one: QuantizedModule, other: QuantizedModule) -> bool:
    x = batches(1, 4)[0]
    with torch.no_grad():
        return torch.equal(float_copy(one)(x), float_copy(other)(x)) and torch.equal(
            float_teacher(one)(x), float_teacher(other)(x)
        )


@pytest.mark.parametrize(
    "net", [Uneven(nn.ReLU()), Uneven(nn.LeakyReLU(0.125)), Joined()], ids=["relu", "leaky", "join"]
)
def test_small_channels_get_resolution_and_the_float_model_is_kept_to_the_bit(
    net: nn.Module, npu_recipe: Recipe
) -> None:
    plain = quantized_of(net, npu_recipe)
    choose_scales(plain, batches())
    balanced = balance_channels(plain, batches())
    assert same_in_float(balanced, plain)
    assert distance(balanced, net) < 0.3 * distance(plain, net)
    assert "balanced the channels of 1 tensors" in str(balanced.definition.notes[-1])


def test_what_is_given_is_left_as_it_was(npu_recipe: Recipe) -> None:
    plain = quantized_of(Uneven(nn.ReLU()), npu_recipe).train()
    before, scales = weights(plain), {name: value.clone() for name, value in plain.named_buffers()}
    balanced = balance_channels(plain, [(batches()[0], torch.zeros(2))])
    assert plain.training
    assert not balanced.training
    assert all(torch.equal(value, before[name]) for name, value in plain.named_parameters())
    assert all(torch.equal(value, scales[name]) for name, value in plain.named_buffers())


def test_factors_do_not_go_through_silu(npu_recipe: Recipe) -> None:
    plain = quantized_of(Uneven(nn.SiLU()), npu_recipe)
    balanced = balance_channels(plain, batches())
    before, after = weights(plain), weights(balanced)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert same_in_float(balanced, plain)


class Gated(nn.Module):
    """SiLU between two layers; the second is depthwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1, groups=8)
        with torch.no_grad():
            self.first.weight.mul_(SPREAD[:, None, None, None] ** 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.silu(self.first(x)))


def test_silu_is_passed_where_a_multiplication_gives_its_sigmoid_the_old_values(npu_recipe: Recipe) -> None:
    options = EqualizeOptions(smooth=SmoothQuant(gain=1.0, tolerance=0.0))
    plain = quantized_of(Gated(), replace(npu_recipe, equalize=options))
    assert [node.op_type for node in plain.definition.model.model.graph].count("Mul") == 2  # one is before the Sigmoid
    counted = torch.zeros(8, 1, 1)
    counted[6:] = 1.0
    choose_scales(plain, batches(), counted.expand_as)
    balanced = balance_channels(plain, batches(), counted.expand_as)
    assert "of 1 tensors" in str(balanced.definition.notes[-1])
    assert not torch.equal(weights(balanced)["first.weight"], weights(plain)["first.weight"])
    assert same_in_float(balanced, plain)


def test_exported_model_gives_what_torch_gives(npu_recipe: Recipe, tmp_path: Path) -> None:
    net, x = Uneven(nn.ReLU()), batches(1, 3)[0]
    tuned = tune_weights(balance_channels(quantized_of(net, npu_recipe), batches()), batches(), [Gptq()])
    done = export(tuned, tmp_path / "balanced.onnx", x)
    assert done.is_exact
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_array_equal(found, freeze(tuned)(x).numpy())
        torch.testing.assert_close(float_teacher(tuned)(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_tuned_module_keeps_its_teacher(npu_recipe: Recipe) -> None:
    tuned = tune_weights(quantized_of(Uneven(nn.ReLU()), npu_recipe), batches(), [Gptq()])
    balanced = balance_channels(tuned, batches())
    assert not torch.equal(weights(balanced)["first.weight"], weights(tuned)["first.weight"])
    assert same_in_float(balanced, tuned)


def test_normalizations_additions_and_depthwise_layers(quantized: QuantizedModule, net: SmallNet) -> None:
    choose_scales(quantized, batches())
    balanced = balance_channels(quantized, batches())
    x = batches(1, 4)[0]
    with torch.no_grad():
        torch.testing.assert_close(float_teacher(balanced)(x), net(x), rtol=1e-4, atol=1e-5)
    assert distance(balanced, net) < 1.5 * distance(quantized, net)


def test_scales_for_each_channel_leave_nothing_to_balance(npu_recipe: Recipe) -> None:
    from quantry.recipe import PerChannel

    weight = replace(npu_recipe.plan.weight, granularity=PerChannel(0))
    recipe = replace(
        npu_recipe, plan=replace(npu_recipe.plan, weight=weight), scale=replace(npu_recipe.scale, npu=None)
    )
    plain = quantized_of(Uneven(nn.ReLU()), recipe)
    balanced = balance_channels(plain, batches())
    assert "of 0 tensors" in str(balanced.definition.notes[-1])
    assert same_in_float(balanced, plain)


def test_same_seed_gives_the_same_module(npu_recipe: Recipe) -> None:
    plain = quantized_of(Joined(), npu_recipe)
    one, other = (balance_channels(copy.deepcopy(plain), batches(), seed=3) for _ in range(2))
    found = other.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in one.state_dict().items() if torch.is_tensor(value))


def test_mistakes_are_named(quantized: QuantizedModule, net: SmallNet) -> None:
    with pytest.raises(DataError, match="at least one batch is needed, got none"):
        balance_channels(quantized, [])
    with pytest.raises(ModelError, match="got SmallNet"):
        balance_channels(net, batches())
    with pytest.raises(ModelError, match=r"frozen.*balance_channels"):
        balance_channels(freeze(quantized), batches())
    learn_scales(quantized)
    with pytest.raises(RecipeError, match="before they are learned"):
        balance_channels(quantized, batches())
