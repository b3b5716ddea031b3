"""Quantized modules compute operators as onnxruntime does, in modes that torch's own functions do not have."""

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from quantry.torchfront import capture, quantize_graph


class LastToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x))[:, -1])


def test_negative_index_counts_from_the_end() -> None:
    torch.manual_seed(0)
    x, module = torch.randn(2, 5, 4), LastToken().eval()
    quantized = quantize_graph(capture(module, x), [x], "S8S8_AAWS")
    torch.testing.assert_close(quantized(x), module(x), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("mode", "coordinates", "nearest"),
    [
        ("nearest", "align_corners", "ceil"),
        ("nearest", "half_pixel", "round_prefer_ceil"),
        ("linear", "asymmetric", "floor"),
    ],
)
def test_resize_gives_what_onnxruntime_gives(mode: str, coordinates: str, nearest: str) -> None:
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}"'
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,3,3] x) => (float[1,1,7,7] y) {{ c = Conv(x, w) y = Resize<{attributes}>(c, , , sizes) }}""")
    weight, sizes = np.ones((1, 1, 1, 1), np.float32), np.array([1, 1, 7, 7], np.int64)
    model.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(sizes, "sizes")])
    x = torch.arange(9.0).reshape(1, 1, 3, 3) / 8
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x.numpy()})[0]
    found = quantize_graph(model.SerializeToString(), [x], "S8S8_AAWS")(x)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=0.02)
