"""A quantized module accepts only the sizes it was captured with."""

import pickle

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


class Scaled(nn.Module):
    """Has arguments that are not tensors, and one that contains several."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, parts: dict[str, object], scale: int, mask: object = None) -> torch.Tensor:
        assert mask is None
        return self.linear(parts["x"]) * scale + parts["more"][0]


def test_arguments_that_are_no_tensors_stay_as_captured() -> None:
    x = torch.rand(2, 4)
    model, example = Scaled(), ({"x": x, "more": [x]}, 3, None)
    graph = capture(model, example)
    for data in ([(x, x)], [({"x": x, "more": [x]},)], [{"parts": {"x": x, "more": [x]}}]):
        module = pickle.loads(pickle.dumps(quantize_graph(graph, data, "A16W8")))
        with torch.no_grad():
            torch.testing.assert_close(module(*example), model(*example), atol=0.05, rtol=0.05)
    with pytest.raises(DataError, match="argument 2 must be what it was at the capture, 3, got 4"):
        module(example[0], 4, None)


def test_export_refuses_an_example_before_it_writes(quantized: QuantizedModule, tmp_path: object) -> None:
    path = tmp_path / "model.onnx"  # type: ignore[operator]
    with pytest.raises(DataError, match="sizes it was captured with"):
        export(quantized, path, torch.rand(1, 3, 16, 16))
    with pytest.raises(DataError, match="too many positional arguments; in export"):
        export(quantized, path, (torch.rand(1, 3, 12, 12), torch.rand(1)))
    assert not path.exists()
