"""A quantized module takes the sizes it was captured with, and says so."""

import pytest
import torch
from torch import nn

from quantry.errors import DataError
from quantry.torchfront import QuantizedModule, capture, export, freeze, quantize_graph


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.parametrize("shape", [(2, 3, 24, 12), (2, 3, 12), (2, 4, 12, 12)])
def test_input_of_another_size_is_refused(quantized: QuantizedModule, shape: tuple[int, ...]) -> None:
    for module in (quantized, freeze(quantized)):
        with pytest.raises(DataError, match=r"input 'x' must have the sizes .* \[any, 3, 12, 12\], got"):
            module(torch.rand(shape))
    with pytest.raises(DataError, match="input 'x' must be a tensor, got list"):
        quantized([1.0])


def test_pool_of_another_size_gives_no_wrong_answer() -> None:
    model, x = pooled(), torch.rand(2, 3, 12, 12)
    module = quantize_graph(capture(model, x), [x], "XINT8")
    with pytest.raises(DataError, match="capture the model with dynamic_shapes"):
        module(torch.rand(2, 3, 24, 24))


def test_sizes_that_vary_are_captured_so() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.rand(2, 3, 12, 12)
    sizes = (dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO),)
    module = quantize_graph(capture(model, x, dynamic_shapes=sizes), [x], "XINT8")
    assert module(torch.rand(1, 3, 20, 16)).shape == (1, 4, 18, 14)


def test_export_refuses_an_example_before_it_writes(quantized: QuantizedModule, tmp_path: object) -> None:
    path = tmp_path / "model.onnx"  # type: ignore[operator]
    with pytest.raises(DataError, match="sizes it was captured with"):
        export(quantized, path, torch.rand(1, 3, 16, 16))
    with pytest.raises(DataError, match="too many positional arguments; in export"):
        export(quantized, path, (torch.rand(1, 3, 12, 12), torch.rand(1)))
    assert not path.exists()
