"""The ONNX model of a captured graph computes the same function."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from quantry.errors import DataError, ModelError
from quantry.torchfront import capture
from quantry.torchfront.lowering import lower


def run_onnx(model: ir.Model, *arrays: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


class Elementwise(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        f = functional
        return [
            f.relu6(x),
            f.hardtanh(x, -0.5, 0.5),
            f.leaky_relu(x, 0.2),
            f.hardswish(x),
            f.hardsigmoid(x),
            f.mish(x),
            f.gelu(x),
            f.gelu(x, approximate="tanh"),
            f.elu(x, 0.7),
            f.selu(x),
            f.celu(x, 0.3),
            f.glu(x, 1),
            f.logsigmoid(x),
            f.softplus(x, beta=2.0),
            torch.div(x, 0.3, rounding_mode="floor"),
            x.clamp(x.mean(), torch.tensor(0.6)),
            torch.where((x > 0.1) & ~(x >= 0.5) | (x <= -1) & (x.abs() < 2), x.sin(), x.cos()),
            x.clamp(min=-0.1),
            (x * 2 - 1) / 3,
            1 - x,
            torch.exp(-x.abs()).sqrt(),
            torch.rsqrt(x.abs() + 1),
            x.pow(2),
            torch.maximum(x, -x),
            torch.add(x, x, alpha=3),
        ]


class Shapes(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        a, b = x.chunk(2, 1)
        c, d = x.split([1, 3], 1)
        return [
            torch.cat([b, a], -1),
            torch.stack([a, b], 1),
            c + d[:, 1:2],
            x[:, :, ::2, 1:],
            x[:, 1],
            x.flip(3),
            x.view(x.shape[0], -1).unsqueeze(1),
            x.reshape(x.shape[0], 2, -1, 6).permute(0, 2, 1, 3),
            x.transpose(1, 2).flatten(1, 2),
            x[:, :1].squeeze(1).expand(-1, -1, -1),
            functional.pad(x, (1, 2, 0, 1), value=0.5),
            functional.pixel_shuffle(x, 2),
            x.unflatten(1, (2, 2)),
            x.flatten(1).unflatten(-1, (12, -1)),
        ]


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.linear = nn.Linear(6, 5)
        self.prelu = nn.PReLU(4)
        self.groups, self.instances = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        nn.init.uniform_(self.groups.weight)
        nn.init.uniform_(self.instances.bias)

    def forward(self, x: Tensor) -> list[Tensor]:
        f = functional
        tokens = x.flatten(1, 2)
        return [
            f.max_pool2d(x, 3, 2, 1),
            f.avg_pool2d(x, 2),
            f.adaptive_avg_pool2d(x, 3),
            x.mean((2, 3)),
            x.sum(1, keepdim=True),
            x.amax(-1),
            f.softmax(x, 1),
            f.log_softmax(x, -1),
            self.norm(x),
            f.interpolate(x, scale_factor=2, mode="nearest"),
            f.interpolate(x, scale_factor=2, mode="bilinear"),
            self.up(x),
            self.linear(tokens),
            self.prelu(x),
            self.groups(x),
            self.instances(x),
            f.scaled_dot_product_attention(tokens, tokens, tokens),
            f.conv2d(x, torch.ones(4, 2, 3, 3), padding="same", groups=2) if False else f.relu(x),
        ]


@pytest.mark.parametrize("kind", [Elementwise, Shapes, Windows])
def test_lowered_operators_compute_what_torch_computes(kind: type[nn.Module]) -> None:
    module = kind().eval()
    lowered = lower(capture(module, torch.randn(1, 4, 6, 6)))
    onnx.checker.check_model(ir.serde.serialize_model(lowered.model), full_check=True)
    x = torch.randn(3, 4, 6, 6)
    with torch.no_grad():
        expected = module(x)
    for found, wanted in zip(run_onnx(lowered.model, x.numpy()), expected, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-4, atol=2e-5)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y += 1
        z = self.act(y)
        return z + y


def test_operators_in_place_change_what_later_ones_read() -> None:
    module = InPlace().eval()
    x = torch.randn(2, 2, 4, 4)
    with torch.no_grad():
        expected = module(x)
    (found,) = run_onnx(lower(capture(module, x)).model, x.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_graph_is_clean_and_keeps_the_names_of_parameters(captured: fx.GraphModule) -> None:
    model = lower(captured).model
    operators = {node.op_type for node in model.graph}
    assert not operators & {"Identity", "Cast", "Constant", "Shape", "Gather", "Unsqueeze"}
    assert "stem.conv.weight" in model.graph.initializers
    assert model.graph.inputs[0].shape is not None
    assert str(model.graph.inputs[0].shape[0]) == "batch"


def test_capture_leaves_the_model_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    module[1].eval()
    capture(module, torch.randn(1, 1, 2, 2))
    assert module.training
    assert not module[1].training


def test_captured_graph_takes_other_batches_and_trains(captured: fx.GraphModule) -> None:
    captured.train()
    assert captured(torch.randn(5, 3, 12, 12)).shape == (5, 5)
    captured.eval()


def test_example_without_tensor_is_refused() -> None:
    with pytest.raises(DataError, match="at least one torch tensor"):
        capture(nn.ReLU(), "picture")


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_module_that_torch_cannot_capture_is_refused_with_its_reason() -> None:
    with pytest.raises(ModelError, match=r"torch\.where, or capture the submodules"):
        capture(Branching(), torch.randn(2, 2))


class Exotic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0(x)


def test_operator_without_lowering_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="special_i0"):
        lower(capture(Exotic(), torch.randn(2, 2)))
