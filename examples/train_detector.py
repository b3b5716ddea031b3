"""Train and export the detector that quantry ships in ``quantry.demo``.

A YOLOX of a few hundred thousand parameters learns to find the shapes of ``quantry.demo.scenes``. On one data-centre
GPU it takes about seven minutes:

    python examples/train_detector.py --device cuda --scenes 100000 --minutes 6 --out trained/

The folder then holds ``detector.pt`` (weights) and ``detector.onnx`` (opset 17, IR 8, BatchNormalization nodes kept
apart); the shipped one reaches a mean average precision of 0.86 on 200 evaluation scenes. Because the schedule follows
the clock, no two trainings give the same weights. ``--weights trained/detector.pt`` exports again without training.
"""

import argparse
import math
import multiprocessing
import operator
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, fx, nn
from torch.nn import functional

from quantry.demo.scenes import CLASS_NAMES, IMAGE_SIZE, TRAINING_SEED, scene

STRIDES = (4, 8, 16)
MOST_OBJECTS = 8


# ---------------------------------------------------------------------------------------------------------------------
# The network
# ---------------------------------------------------------------------------------------------------------------------


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03),
        nn.SiLU(),
    )


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 depthwise convolution followed by a pointwise one."""
    return nn.Sequential(conv(inputs, inputs, 3, stride, groups=inputs), conv(inputs, outputs, 1))


class Bottleneck(nn.Module):
    """A pointwise and a separable convolution around which the input may be added."""

    def __init__(self, channels: int, *, residual: bool) -> None:
        super().__init__()
        self.reduce = conv(channels, channels, 1)
        self.mix = separable(channels, channels)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, h, w] to the same shape."""
        y = self.mix(self.reduce(x))
        return x + y if self.residual else y


class CrossStage(nn.Module):
    """Half of the channels go through bottlenecks, half go round them, and both are joined."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, residual: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through = conv(inputs, half, 1)
        self.round = conv(inputs, half, 1)
        self.blocks = nn.Sequential(*(Bottleneck(half, residual=residual) for _ in range(depth)))
        self.join = conv(2 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h, w]."""
        return self.join(torch.cat([self.blocks(self.through(x)), self.round(x)], 1))


class PyramidPooling(nn.Module):
    """Joins the input with its maxima over growing neighbourhoods."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = conv(channels, channels // 2, 1)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (3, 5, 7))
        self.join = conv(channels * 2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, h, w] to the same shape."""
        x = self.reduce(x)
        return self.join(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Head(nn.Module):
    """One level's decoupled branches: box, objectness and class."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stem = conv(inputs, width, 1)
        self.class_branch = nn.Sequential(separable(width, width), separable(width, width))
        self.box_branch = nn.Sequential(separable(width, width), separable(width, width))
        self.classes = nn.Conv2d(width, len(CLASS_NAMES), 1)
        self.box = nn.Conv2d(width, 4, 1)
        self.object = nn.Conv2d(width, 1, 1)
        for layer in (self.classes, self.object):
            nn.init.constant_(layer.bias, -math.log(99.0))  # start from one per cent, or the background swamps the loss

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map [n, inputs, h, w] to box [n, 4, h, w], object logit [n, 1, h, w] and class logits [n, k, h, w]."""
        x = self.stem(x)
        box = self.box_branch(x)
        return self.box(box), self.object(box), self.classes(self.class_branch(x))


class Detector(nn.Module):
    """Backbone, top-down and bottom-up neck, and three heads."""

    def __init__(self, width: int = 24, neck: int = 80, head: int = 64) -> None:
        super().__init__()
        w2, w3, w4 = 2 * width, 4 * width, 8 * width
        self.stem = conv(3, width, 3, 2)
        self.stage2 = nn.Sequential(separable(width, w2, 2), CrossStage(w2, w2, 1))
        self.stage3 = nn.Sequential(separable(w2, w3, 2), CrossStage(w3, w3, 2))
        self.stage4 = nn.Sequential(separable(w3, w4, 2), PyramidPooling(w4), CrossStage(w4, w4, 1, residual=False))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral4, self.lateral3 = conv(w4, neck, 1), conv(neck, neck, 1)
        self.top3 = CrossStage(neck + w3, neck, 1, residual=False)
        self.top2 = CrossStage(neck + w2, neck, 1, residual=False)
        self.down3, self.down4 = separable(neck, neck, 2), separable(neck, neck, 2)
        self.bottom3 = CrossStage(2 * neck, neck, 1, residual=False)
        self.bottom4 = CrossStage(2 * neck, neck, 1, residual=False)
        self.heads = nn.ModuleList(Head(neck, head) for _ in STRIDES)

    def levels(self, images: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return each stride's box, object logit and class logits."""
        c2 = self.stage2(self.stem(images))
        c3 = self.stage3(c2)
        p4 = self.lateral4(self.stage4(c3))
        p3 = self.lateral3(self.top3(torch.cat([self.up(p4), c3], 1)))
        n2 = self.top2(torch.cat([self.up(p3), c2], 1))
        n3 = self.bottom3(torch.cat([self.down3(n2), p3], 1))
        n4 = self.bottom4(torch.cat([self.down4(n3), p4], 1))
        return [head(x) for head, x in zip(self.heads, (n2, n3, n4), strict=True)]

    def forward(self, images: Tensor) -> Tensor:
        """Map RGB images [n, 3, h, w] in 0..255 to [n, anchors, 4 + 1 + classes]: grid offsets, then probabilities."""
        joined = [
            torch.cat([box, torch.sigmoid(seen), torch.sigmoid(kind)], 1).flatten(2)
            for box, seen, kind in self.levels(images)
        ]
        return torch.cat(joined, 2).transpose(1, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Assignment and loss (YOLOX: https://arxiv.org/abs/2107.08430)
# ---------------------------------------------------------------------------------------------------------------------


def anchors(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the grid cells [a, 2] as x, y and their strides [a, 1]."""
    grids, strides = [], []
    for stride in STRIDES:
        ticks = torch.arange(IMAGE_SIZE // stride, device=device, dtype=torch.float32)
        y, x = torch.meshgrid(ticks, ticks, indexing="ij")
        grids.append(torch.stack([x.flatten(), y.flatten()], 1))
        strides.append(torch.full((grids[-1].shape[0], 1), float(stride), device=device))
    return torch.cat(grids), torch.cat(strides)


def decode(raw: Tensor, grid: Tensor, stride: Tensor) -> Tensor:
    """Turn grid offsets [..., a, 4] into corners [..., a, 4] in pixels."""
    centre = (raw[..., :2] + grid) * stride
    half = torch.exp(raw[..., 2:].clamp(max=6.0)) * stride / 2
    return torch.cat([centre - half, centre + half], -1)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of broadcastable boxes [..., 4]."""
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    shared = area(size)
    return shared / (area(a[..., 2:] - a[..., :2]) + area(b[..., 2:] - b[..., :2]) - shared + 1e-7)


def area(size: Tensor) -> Tensor:
    """Return width times height of [..., 2]; the gradient of ``prod`` waits for the device and cannot be recorded."""
    return size[..., 0] * size[..., 1]


@torch.no_grad()
def assign(
    corners: Tensor, logits: Tensor, truth: tuple[Tensor, Tensor], cells: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Give each anchor an object or none, by SimOTA.

    Args:
        corners: Predicted boxes [n, a, 4].
        logits: Object and class logits [n, a, 1 + k].
        truth: Boxes [n, g, 4] and labels [n, g], -1 where there is none.
        cells: What anchors() returns.

    Returns:
        Whether each anchor is positive [n, a], which object it has [n, a], and their overlap [n, a].
    """
    boxes, labels = truth
    centre = (cells[0] + 0.5) * cells[1]
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    near = ((centre[None, :, None] - middle[:, None]).abs() < 1.5 * cells[1][None, :, None]).all(-1)
    inside = ((centre[None, :, None] > boxes[:, None, :, :2]) & (centre[None, :, None] < boxes[:, None, :, 2:])).all(-1)
    real = (labels >= 0)[:, None]
    allowed = (near | inside) & real
    iou = overlap(corners[:, :, None], boxes[:, None]) * real
    chance = (logits[..., 1:].sigmoid() * logits[..., :1].sigmoid()).sqrt().clamp(1e-6, 1 - 1e-6)
    miss = -torch.log1p(-chance).sum(-1, keepdim=True)
    picked = torch.gather(chance, 2, labels.clamp(min=0)[:, None].expand(-1, chance.shape[1], -1))
    kind_cost = miss + torch.log1p(-picked) - torch.log(picked)
    cost = kind_cost - 3 * torch.log(iou + 1e-8) + 1e5 * ~(near & inside & real) + 1e9 * ~allowed
    wanted = (iou * allowed).topk(10, dim=1).values.sum(1).int().clamp(min=1)
    rank = cost.argsort(dim=1).argsort(dim=1)
    match = (rank < wanted[:, None]) & allowed
    cheapest = torch.where(match, cost, math.inf).min(-1)
    positive = match.any(-1)
    return positive, cheapest.indices, torch.gather(iou, 2, cheapest.indices[..., None])[..., 0]


def loss_of(model: Detector, images: Tensor, truth: tuple[Tensor, Tensor], cells: tuple[Tensor, Tensor]) -> Tensor:
    """Return the training loss of one batch."""
    joined = torch.cat([torch.cat(level, 1).flatten(2) for level in model.levels(images)], 2).transpose(1, 2)
    raw, logits = joined[..., :4], joined[..., 4:]
    corners = decode(raw, *cells)
    positive, index, iou = assign(corners, logits, truth, cells)
    count = positive.sum().clamp(min=1)
    boxes = torch.gather(truth[0], 1, index[..., None].expand(-1, -1, 4))
    labels = torch.gather(truth[1], 1, index).clamp(min=0)
    weight = positive.float()
    box_loss = ((1 - overlap(corners, boxes) ** 2) * weight).sum()
    middle, size = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]).clamp(min=1.0)
    exact = torch.cat([middle / cells[1] - cells[0], torch.log(size / cells[1])], -1)
    exact_loss = ((raw - exact).abs().sum(-1) * weight).sum()
    object_loss = functional.binary_cross_entropy_with_logits(logits[..., 0], weight, reduction="sum")
    target = functional.one_hot(labels, len(CLASS_NAMES)) * iou[..., None]
    kind_loss = functional.binary_cross_entropy_with_logits(logits[..., 1:], target, reduction="none").sum(-1)
    return (5 * box_loss + exact_loss + object_loss + (kind_loss * weight).sum()) / count


# ---------------------------------------------------------------------------------------------------------------------
# Data and training
# ---------------------------------------------------------------------------------------------------------------------


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one training scene, its labels padded to MOST_OBJECTS."""
    drawn = scene(seed)
    boxes = np.zeros((MOST_OBJECTS, 4), np.float32)
    labels = np.full(MOST_OBJECTS, -1, np.int64)
    boxes[: len(drawn.boxes)], labels[: len(drawn.labels)] = drawn.boxes, drawn.labels
    return drawn.image.transpose(2, 0, 1), boxes, labels


def load(count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the training scenes on every core and put them on the device."""
    with multiprocessing.get_context("fork").Pool() as pool:
        drawn = pool.map(draw, range(TRAINING_SEED, TRAINING_SEED + count), chunksize=64)
    columns = zip(*drawn, strict=True)
    images, boxes, labels = (torch.from_numpy(np.stack(column)).to(device) for column in columns)
    return images, boxes, labels


def batches(data: tuple[Tensor, Tensor, Tensor], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield shuffled batches for ever, each mirrored, turned and with its colours exchanged at random."""
    images, boxes, labels = data
    while True:
        order = torch.randperm(len(images), device=images.device)
        for start in range(0, len(images) - size + 1, size):
            pick = order[start : start + size]
            x, b = images[pick].float(), boxes[pick]
            x = x[:, torch.randperm(3).to(x.device)]
            if torch.rand(()) < 0.5:
                x, b = (
                    x.flip(3),
                    torch.stack([IMAGE_SIZE - b[..., 2], b[..., 1], IMAGE_SIZE - b[..., 0], b[..., 3]], -1),
                )
            if torch.rand(()) < 0.5:
                x, b = x.transpose(2, 3).contiguous(), b[..., [1, 0, 3, 2]]
            yield x, b, labels[pick]


def optimizer_of(model: Detector) -> torch.optim.Optimizer:
    """Return AdamW that decays convolution weights only, as detectors are usually trained."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))


def train(options: argparse.Namespace) -> Detector:
    """Train for the given minutes and return the average of the weights along the way."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    begun = time.monotonic()
    data = load(options.scenes, device)
    print(f"{options.scenes} scenes drawn in {time.monotonic() - begun:.0f} s", flush=True)
    model, average = Detector().to(device), Detector().to(device).eval()
    average.load_state_dict(model.state_dict())
    optimizer, cells = optimizer_of(model), anchors(device)
    begun, step, total = time.monotonic(), 0, torch.zeros((), device=device)
    for images, boxes, labels in batches(data, options.batch):
        progress = (time.monotonic() - begun) / (60 * options.minutes)
        if progress >= 1:
            break
        rate = options.rate * min(1.0, (step + 1) / 300) * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, images, (boxes, labels), cells)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        follow(average, model, min(0.999, (1 + step) / (10 + step)))
        step, total = step + 1, total + loss.detach()
        if step % options.report == 0:
            print(f"step {step} progress {progress:.3f} loss {total.item() / options.report:.4f}", flush=True)
            total.zero_()
    return average.cpu()


@torch.no_grad()
def follow(average: Detector, model: Detector, keep: float) -> None:
    """Move the running average of weights and statistics a little towards the model."""
    pairs = zip(average.state_dict().values(), model.state_dict().values(), strict=True)
    floats = [(mean, new) for mean, new in pairs if mean.is_floating_point()]
    torch._foreach_lerp_([mean for mean, _ in floats], [new for _, new in floats], 1 - keep)


# ---------------------------------------------------------------------------------------------------------------------
# Export: one ONNX node or two per traced operation, so that names stay those of the modules
# ---------------------------------------------------------------------------------------------------------------------


class Exporter:
    """Writes a traced Detector as ONNX."""

    def __init__(self, model: Detector) -> None:
        self.modules = dict(model.named_modules())
        self.graph = fx.symbolic_trace(model).graph
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: dict[fx.Node, str] = {}

    def weight(self, name: str, value: Tensor | np.ndarray) -> str:
        """Add an initializer and return its name."""
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, name: str, inputs: list[str], **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        output = f"{name}.out"
        self.nodes.append(helper.make_node(kind, inputs, [output], name, **attributes))
        return output

    def module(self, name: str, x: str, suffix: str) -> str:
        """Write the module called name over the value x."""
        layer, at = self.modules[name], name + suffix
        if isinstance(layer, nn.Conv2d):
            inputs = [x, self.weight(f"{at}.weight", layer.weight)]
            if layer.bias is not None:
                inputs.append(self.weight(f"{at}.bias", layer.bias))
            pad = int(layer.padding[0])
            shape = {"kernel_shape": list(layer.kernel_size), "strides": list(layer.stride), "pads": [pad] * 4}
            return self.node("Conv", at, inputs, group=layer.groups, dilations=[1, 1], **shape)
        if isinstance(layer, nn.BatchNorm2d):
            parts = ("weight", "bias", "running_mean", "running_var")
            inputs = [x, *(self.weight(f"{at}.{part}", getattr(layer, part)) for part in parts)]
            return self.node("BatchNormalization", at, inputs, epsilon=layer.eps)
        if isinstance(layer, nn.SiLU):
            return self.node("Mul", at, [x, self.node("Sigmoid", f"{at}.sigmoid", [x])])
        if isinstance(layer, nn.MaxPool2d):
            size, pad = int(layer.kernel_size), int(layer.padding)
            return self.node("MaxPool", at, [x], kernel_shape=[size] * 2, strides=[1, 1], pads=[pad] * 4)
        if isinstance(layer, nn.Upsample):
            scales = self.weight(f"{at}.scales", np.array([1, 1, 2, 2], np.float32))
            mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            return self.node("Resize", at, [x, "", scales], **mode)
        raise NotImplementedError(f"export covers the layers of Detector; given {type(layer).__name__}; at {name}")

    def function(self, traced: fx.Node) -> str:
        """Write a traced function or method."""
        name = traced.name
        if traced.target is torch.cat:
            parts, axis = traced.args[0], traced.args[1]
            return self.node("Concat", name, [self.values[part] for part in parts], axis=axis)
        inputs = [self.values[argument] for argument in traced.args if isinstance(argument, fx.Node)]
        if traced.target is operator.add:
            return self.node("Add", name, inputs)
        if traced.target is torch.sigmoid:
            return self.node("Sigmoid", name, inputs)
        if traced.target == "flatten":
            shape = self.weight(f"{name}.shape", np.array([0, 0, -1], np.int64))
            return self.node("Reshape", name, [*inputs, shape])
        if traced.target == "transpose":
            return self.node("Transpose", name, inputs, perm=[0, 2, 1])
        raise NotImplementedError(f"export covers the functions of Detector; given {traced.target}; at {name}")

    def model(self) -> onnx.ModelProto:
        """Return the whole model."""
        called: dict[str, int] = {}
        for traced in self.graph.nodes:
            if traced.op == "placeholder":
                self.values[traced] = "images"
            elif traced.op == "call_module":
                seen = called.get(traced.target, 0)
                called[traced.target] = seen + 1
                suffix = f".{seen}" if seen else ""
                self.values[traced] = self.module(traced.target, self.values[traced.args[0]], suffix)
            elif traced.op == "output":
                self.nodes[-1].output[0] = "detections"
            else:
                self.values[traced] = self.function(traced)
        rows = sum((IMAGE_SIZE // stride) ** 2 for stride in STRIDES)
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, IMAGE_SIZE, IMAGE_SIZE])
        found = helper.make_tensor_value_info("detections", TensorProto.FLOAT, ["batch", rows, 5 + len(CLASS_NAMES)])
        graph = helper.make_graph(self.nodes, "quantry_demo_detector", [images], [found], self.weights)
        written = helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], producer_name="train_detector"
        )
        onnx.checker.check_model(written, full_check=True)
        return written


def main() -> None:
    """Train, or take given weights, and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=6.0, help="time to train, drawing the scenes not counted")
    parser.add_argument("--scenes", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--report", type=int, default=200, help="steps between two lines of progress")
    parser.add_argument("--weights", type=Path, help="export these weights and do not train")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.weights:
        model = Detector()
        model.load_state_dict(torch.load(options.weights, weights_only=True))
    else:
        model = train(options)
    model = model.eval()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), options.out / "detector.pt")
    onnx.save(Exporter(model).model(), options.out / "detector.onnx")
    print(f"{sum(p.numel() for p in model.parameters())} parameters written to {options.out}")


if __name__ == "__main__":
    main()
