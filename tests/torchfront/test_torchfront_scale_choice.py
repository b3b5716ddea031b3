"""Scales chosen by the cost of their errors, and tuning with the chosen scales."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch_nets import SmallNet, batches

from quantry.errors import DataError, ModelError, RecipeError
from quantry.recipe import FloatScale, Gptq, MinMax, Recipe, ScaleOptions, TensorSpec
from quantry.torchfront import (
    FakeQuantizer,
    QuantizedModule,
    capture,
    choose_scales,
    export,
    float_teacher,
    freeze,
    learn_scales,
    quantize_graph,
    tune_weights,
)


def exponents(module: QuantizedModule) -> dict[str, Tensor]:
    parts = {name: module.get_submodule(path) for name, path in module.layout.quantizers.items()}
    return {name: torch.log2(part.current_scale()) for name, part in parts.items() if isinstance(part, FakeQuantizer)}


def shifted(module: QuantizedModule, by: float) -> QuantizedModule:
    """Return a copy whose activation scales are off by the given powers of two."""
    wrong = copy.deepcopy(module)
    for part in wrong.modules():
        if isinstance(part, FakeQuantizer) and not part.constant:
            part.scale.mul_(2.0**by)
    return wrong


def distance(module: QuantizedModule, net: SmallNet) -> float:
    images = batches(2, 8)
    with torch.no_grad():
        return sum(float((module(x) - net(x)).square().mean()) for x in images)


class Rare(nn.Module):
    """Two results; only the second depends on the few large values."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2, 2, 1, bias=False)
        self.out = nn.Conv2d(2, 2, 1, groups=2, bias=False)
        with torch.no_grad():
            self.mix.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]])[..., None, None])
            self.out.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.mix(x)))


def rare_pictures() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    pictures = torch.rand(4, 2, 16, 16, generator=generator)
    pictures[:, 1, 0, 0] = 40.0
    return [pictures]


@pytest.mark.parametrize("by", [-2.0, 2.0])
def test_scales_that_are_wrong_by_powers_of_two_come_back(quantized: QuantizedModule, net: SmallNet, by: float) -> None:
    wrong = shifted(quantized, by)
    spoilt = distance(wrong, net)
    assert choose_scales(wrong, batches()) > 0
    assert distance(wrong, net) < 0.1 * spoilt
    assert distance(wrong, net) < 2.0 * distance(quantized, net)


def test_power_of_two_scales_stay_so_and_limits_of_the_npu_hold(quantized: QuantizedModule) -> None:
    wrong = shifted(quantized, 1.0)
    choose_scales(wrong, batches())
    chosen = exponents(wrong)
    assert all(torch.equal(value, value.round()) for value in chosen.values())
    kept = exponents(freeze(wrong))
    assert all(torch.equal(kept[name], chosen[name]) for name in kept)


def test_importance_decides_which_values_a_range_is_for(npu_recipe: Recipe) -> None:
    pictures = rare_pictures()
    module = quantize_graph(capture(Rare().eval(), pictures[0]), pictures, npu_recipe)

    def only(channel: int) -> dict[str, Tensor]:
        mask = torch.zeros(1, 2, 1, 1)
        mask[:, channel] = 1.0
        one = copy.deepcopy(module)
        choose_scales(one, pictures, mask.expand_as)
        return exponents(one)

    common, rare = only(0), only(1)
    first = next(iter(common))
    assert rare[first] >= common[first] + 3  # 40 against 1


def test_nothing_is_trained_or_switched(quantized: QuantizedModule) -> None:
    weights = {name: value.clone() for name, value in quantized.named_parameters()}
    quantized.train()
    choose_scales(quantized, [(batches()[0], torch.zeros(2))])
    assert quantized.training
    assert all(part.enabled for part in quantized.modules() if isinstance(part, FakeQuantizer))
    assert all(torch.equal(value, weights[name]) and value.grad is None for name, value in quantized.named_parameters())


def test_scales_of_channels_that_are_no_powers_of_two(captured: fx.GraphModule, net: SmallNet) -> None:
    plain = Recipe(scale=ScaleOptions(activation=MinMax(), weight=MinMax()))
    recipe = replace(plain, plan=replace(plain.plan, activation=TensorSpec(scale=FloatScale()), weight=TensorSpec()))
    module = quantize_graph(captured, batches(), recipe)
    wrong = shifted(module, 1.6)
    choose_scales(wrong, batches())
    assert distance(wrong, net) < 2.0 * distance(module, net)


def test_retune_rounds_to_the_scales_of_now(quantized: QuantizedModule, net: SmallNet, tmp_path: Path) -> None:
    choose_scales(quantized, batches())
    tuned = tune_weights(quantized, batches(), [Gptq()])
    before, after = exponents(quantized), exponents(tuned)
    weights = [name for name in before if "weight" in name]
    assert all(torch.equal(before[name], after[name]) for name in weights)
    for name in weights:
        levels = tuned.get_parameter(tuned.layout.tensors[name]).detach() / torch.exp2(after[name])
        torch.testing.assert_close(levels, levels.round())  # on the grid: what the algorithm rounded stays so
    assert distance(tuned, net) < 2.0 * distance(quantized, net)
    x = batches(1, 3)[0]
    with torch.no_grad():
        torch.testing.assert_close(float_teacher(tuned)(x), net(x), rtol=1e-4, atol=1e-5)
    assert export(tuned, tmp_path / "tuned.onnx", x).is_exact


def test_mistakes_are_named(quantized: QuantizedModule, net: SmallNet) -> None:
    with pytest.raises(DataError, match="at least one batch is needed, got none"):
        choose_scales(quantized, [])
    with pytest.raises(ModelError, match="got SmallNet"):
        choose_scales(net, batches())
    with pytest.raises(RecipeError, match="at least one algorithm"):
        tune_weights(quantized, batches(), [])
    with pytest.raises(ModelError, match="frozen"):
        choose_scales(freeze(quantized), batches())
    with pytest.raises(ModelError, match="frozen"):
        tune_weights(freeze(quantized), batches(), [Gptq()])
    learn_scales(quantized)
    with pytest.raises(RecipeError, match="before they are learned"):
        choose_scales(quantized, batches())


def test_same_seed_gives_same_scales(quantized: QuantizedModule) -> None:
    found = []
    for _ in range(2):
        one = copy.deepcopy(quantized)
        choose_scales(one, batches(), seed=3)
        found.append(np.array([float(value.sum()) for value in exponents(one).values()]))
    assert np.array_equal(*found)
