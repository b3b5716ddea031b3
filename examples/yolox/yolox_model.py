"""YOLOX (Ge et al. 2021, https://arxiv.org/abs/2107.08430), as much of it as inference and training need.

``Yolox`` is split as quantization wants it: ``base_model`` is everything that computes with weights and is quantized,
and ``forward`` adds what stays float: the scores' sigmoid and the joining of the levels. Parameters of ``base_model``
have the names of the published checkpoints.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

STRIDES = (8, 16, 32)
EPSILON = 1e-3


@dataclass(frozen=True)
class Shape:
    """Which member of the family.

    Attributes:
        width: Factor on the number of channels.
        depthwise: Whether 3x3 convolutions are depthwise.
        classes: Number of classes.
    """

    width: float
    depthwise: bool
    classes: int = 80


NANO = Shape(0.25, depthwise=True)
TINY = Shape(0.375, depthwise=False)


class BaseConv(nn.Module):
    """Convolution, batch normalization and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=EPSILON, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        return self.act(self.bn(self.conv(x)))


class DepthwiseConv(nn.Module):
    """A depthwise convolution and a pointwise one."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.dconv = BaseConv(inputs, inputs, kernel, stride, groups=inputs)
        self.pconv = BaseConv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        return self.pconv(self.dconv(x))


def spatial_conv(shape: Shape, inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """Return the family member's 3x3 convolution."""
    kind = DepthwiseConv if shape.depthwise else BaseConv
    return kind(inputs, outputs, 3, stride)


class Focus(nn.Module):
    """Moves every second row and column into channels, and convolves."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = BaseConv(12, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, 3, h, w] to [n, outputs, h / 2, w / 2]."""
        corners = [x[..., top::2, left::2] for left in (0, 1) for top in (0, 1)]
        return self.conv(torch.cat(corners, 1))


class Bottleneck(nn.Module):
    """A pointwise and a spatial convolution, with the input added where asked for."""

    def __init__(self, shape: Shape, channels: int, *, residual: bool) -> None:
        super().__init__()
        self.conv1 = BaseConv(channels, channels, 1)
        self.conv2 = spatial_conv(shape, channels, channels)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, h, w] to the same shape."""
        y = self.conv2(self.conv1(x))
        return y + x if self.residual else y


class CrossStage(nn.Module):
    """Half of the channels go through bottlenecks, the other half round them."""

    def __init__(self, shape: Shape, inputs: int, outputs: int, depth: int, *, residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.conv1, self.conv2 = BaseConv(inputs, half, 1), BaseConv(inputs, half, 1)
        self.conv3 = BaseConv(2 * half, outputs, 1)
        self.m = nn.Sequential(*(Bottleneck(shape, half, residual=residual) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h, w]."""
        through, around = self.conv1(x), self.conv2(x)
        return self.conv3(torch.cat([self.m(through), around], 1))


class PyramidPooling(nn.Module):
    """Joins a tensor with its maxima over growing windows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = BaseConv(channels, channels // 2, 1), BaseConv(channels * 2, channels, 1)
        self.m = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, h, w] to the same shape."""
        x = self.conv1(x)
        return self.conv2(torch.cat([x, *(pool(x) for pool in self.m)], 1))


class Darknet(nn.Module):
    """The backbone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        c = int(64 * shape.width)

        def stage(inputs: int, depth: int) -> nn.Sequential:
            down = spatial_conv(shape, inputs, 2 * inputs, stride=2)
            return nn.Sequential(down, CrossStage(shape, 2 * inputs, 2 * inputs, depth, residual=True))

        self.stem = Focus(c)
        self.dark2, self.dark3, self.dark4 = stage(c, 1), stage(2 * c, 3), stage(4 * c, 3)
        self.dark5 = nn.Sequential(
            spatial_conv(shape, 8 * c, 16 * c, stride=2),
            PyramidPooling(16 * c),
            CrossStage(shape, 16 * c, 16 * c, 1, residual=False),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map images [n, 3, h, w] to maps of strides 8, 16 and 32."""
        fine = self.dark3(self.dark2(self.stem(x)))
        middle = self.dark4(fine)
        return fine, middle, self.dark5(middle)


class Pyramid(nn.Module):
    """Backbone and neck: maps of all strides, mixed downwards and upwards."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        c3, c4, c5 = (int(channels * shape.width) for channels in (256, 512, 1024))

        def mix(inputs: int, outputs: int) -> CrossStage:
            return CrossStage(shape, inputs, outputs, 1, residual=False)

        self.backbone = Darknet(shape)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral_conv0, self.C3_p4 = BaseConv(c5, c4, 1), mix(2 * c4, c4)
        self.reduce_conv1, self.C3_p3 = BaseConv(c4, c3, 1), mix(2 * c3, c3)
        self.bu_conv2, self.C3_n3 = spatial_conv(shape, c3, c3, stride=2), mix(2 * c3, c4)
        self.bu_conv1, self.C3_n4 = spatial_conv(shape, c4, c4, stride=2), mix(2 * c4, c5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map images [n, 3, h, w] to maps of strides 8, 16 and 32."""
        fine, middle, coarse = self.backbone(x)
        deep = self.lateral_conv0(coarse)
        joined = self.reduce_conv1(self.C3_p4(torch.cat([self.upsample(deep), middle], 1)))
        out3 = self.C3_p3(torch.cat([self.upsample(joined), fine], 1))
        out4 = self.C3_n3(torch.cat([self.bu_conv2(out3), joined], 1))
        return out3, out4, self.C3_n4(torch.cat([self.bu_conv1(out4), deep], 1))


class Head(nn.Module):
    """Decoupled branches for box, object and class of each stride."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = int(256 * shape.width)

        def branch() -> nn.Sequential:
            return nn.Sequential(spatial_conv(shape, width, width), spatial_conv(shape, width, width))

        def every(outputs: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Conv2d(width, outputs, 1) for _ in STRIDES)

        self.stems = nn.ModuleList(BaseConv(int(c * shape.width), width, 1) for c in (256, 512, 1024))
        self.cls_convs = nn.ModuleList(branch() for _ in STRIDES)
        self.reg_convs = nn.ModuleList(branch() for _ in STRIDES)
        self.cls_preds, self.reg_preds, self.obj_preds = every(shape.classes), every(4), every(1)

    def forward(self, maps: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each stride, box [n, 4, h, w], object logit [n, 1, h, w] and class logits [n, k, h, w]."""
        levels = []
        for index, features in enumerate(maps):
            x = self.stems[index](features)
            classes = self.cls_preds[index](self.cls_convs[index](x))
            region = self.reg_convs[index](x)
            levels.append((self.reg_preds[index](region), self.obj_preds[index](region), classes))
        return levels


class Body(nn.Module):
    """All that computes with weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.backbone, self.head = Pyramid(shape), Head(shape)

    def forward(self, images: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Map images [n, 3, h, w], BGR in 0..255, to each stride's box, object logit and class logits."""
        return self.head(self.backbone(images))


class Yolox(nn.Module):
    """The detector: ``base_model`` is quantized, what `forward` does with its answer stays float."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.base_model = Body(shape)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to [n, cells, 5 + classes]: box offsets, object score and class scores of every cell."""
        levels = [
            torch.cat([box, obj.sigmoid(), classes.sigmoid()], 1).flatten(2)
            for box, obj, classes in self.base_model(images)
        ]
        return torch.cat(levels, 2).transpose(1, 2)


def load(path: str | Path, shape: Shape) -> Yolox:
    """Return the detector with the weights of a file.

    Args:
        path: A published checkpoint (``.pth``), or an ONNX export of one, in which batch normalizations are folded:
            each becomes an identity with a bias, whose running statistics mean nothing and must not be trained.
        shape: Which member of the family.
    """
    model = Yolox(shape).eval()
    if Path(path).suffix == ".onnx":
        _load_onnx(model.base_model, Path(path))
    else:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        model.base_model.load_state_dict(stored.get("model", stored))
    return model


def _load_onnx(body: Body, path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    stored = [[values[name] for name in node.input[1:]] for node in graph.node if node.op_type == "Conv"]
    order: list[nn.Conv2d] = []
    layers = [part for part in body.modules() if isinstance(part, nn.Conv2d)]
    hooks = [part.register_forward_hook(lambda part, *_: order.append(part)) for part in layers]
    with torch.no_grad():
        body(torch.zeros(1, 3, 64, 64))
    for hook in hooks:
        hook.remove()
    norms = {part.conv: part.bn for part in body.modules() if isinstance(part, BaseConv)}
    with torch.no_grad():
        for layer, (weight, bias) in zip(order, stored, strict=True):
            layer.weight.copy_(torch.from_numpy(np.array(weight)))
            norm = norms.get(layer)
            if norm is None:
                layer.bias.copy_(torch.from_numpy(np.array(bias)))
                continue
            norm.bias.copy_(torch.from_numpy(np.array(bias)))
            norm.running_var.fill_(1 - EPSILON)
