"""An export is called exact only if no operator of it can differ, whatever the samples show."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from quantry.torchfront import capture, export, quantize_graph


class Around(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Conv2d(3, 8, 3, padding=1), function, nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x).relu()))


@pytest.mark.parametrize(
    ("function", "rounded"),
    [
        (lambda y: functional.interpolate(functional.silu(y), scale_factor=2, mode="bilinear"), ()),
        (lambda y: y * functional.adaptive_avg_pool2d(y, 1), ()),
        (lambda y: functional.avg_pool2d(y, 2, ceil_mode=True, count_include_pad=False), ()),
        (lambda y: functional.avg_pool2d(y, 4, 3, ceil_mode=True), ("AveragePool",)),
        (functional.instance_norm, ("InstanceNormalization",)),
        (lambda y: functional.interpolate(y, scale_factor=1.5, mode="bilinear"), ()),
        (lambda y: functional.interpolate(y, size=(17, 11), mode="bilinear", align_corners=True), ()),
        (lambda y: functional.interpolate(functional.adaptive_avg_pool2d(y, 1), size=(6, 6), mode="bilinear"), ()),
        (lambda y: functional.interpolate(y, scale_factor=1.5, mode="bilinear").softmax(1), ("Softmax",)),
        (lambda y: functional.interpolate(y, scale_factor=1.5, mode="bicubic"), ("Resize",)),
    ],
    ids=[
        "doubled",
        "pooled",
        "whole windows",
        "cut windows",
        "normalized",
        "interpolated",
        "sizes",
        "from a pool",
        "softmax",
        "cubic",
    ],
)
def test_operators_that_round_are_named(
    function: Callable[[Tensor], Tensor], rounded: tuple[str, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    images = [torch.randn(1, 3, 6, 6) for _ in range(10)]
    module = quantize_graph(capture(Around(function).eval(), images[0]), images[:3], "XINT8")
    done = export(module, tmp_path / "model.onnx", images[0], samples=images[1:])
    assert done.rounded == rounded
    assert done.is_exact == (not rounded)
    assert done.differences[0].count == 10 * module(images[0]).numel()
    if rounded:
        assert f"exact except for {', '.join(rounded)}" in str(done)
    else:
        assert done.differences[0].differing == 0


def test_sums_of_float_scales_round(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, 6, 6)
    module = quantize_graph(capture(Around(torch.relu).eval(), image), [image], "S8S8_AAWS")
    done = export(module, tmp_path / "model.onnx", image)
    assert done.rounded == ("Conv",)
    assert not done.is_exact
