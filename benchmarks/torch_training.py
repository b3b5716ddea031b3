"""The torch path on a GPU: what fake quantization costs, and what label-free training recovers.

    python -m benchmarks.torch_training prepare FOLDER            pictures and weights of the shared data, packed
    python -m benchmarks.torch_training speed FOLDER              time and memory of a step, float and quantized
    python -m benchmarks.torch_training train FOLDER OUT NAME     calibrate, train without labels, write ONNX files
    python -m benchmarks.torch_training score OUT                 average precision of the files, with their evaluators

``prepare`` and ``score`` need the shared data, ``speed`` and ``train`` only what ``prepare`` wrote.
"""

import argparse
import copy
import io
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.locations import shared
from quantry.recipe import (
    DataType,
    MinMSE,
    NpuLimits,
    OwnBias,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "yolox"))

PICTURES = {"yolox_tiny_click": ("yolox_tiny_click",), "yolox_nano": ("coco_val", "imagenet_val")}
SIZE = 416


def document_recipe() -> Recipe:
    """int8, symmetric, one power-of-two scale for each tensor: weights, biases and activations."""
    spec = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())
    return Recipe(
        plan=PlanOptions(activation=spec, weight=spec, bias=OwnBias(spec), force_pass_through=True),
        scale=ScaleOptions(activation=MinMSE(), weight=MinMSE(), npu=NpuLimits()),
    )


def prepare(folder: Path) -> None:
    """Pack calibration pictures as the evaluators prepare them, and weights."""
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    for name, sources in PICTURES.items():
        pictures = []
        for source in sources:
            for path in sorted(shared(source, "calib").glob("*.*")):
                pixels = cv2.imread(str(path))
                factor = SIZE / max(pixels.shape[:2])
                shape = (round(pixels.shape[1] * factor), round(pixels.shape[0] * factor))
                canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
                canvas[: shape[1], : shape[0]] = cv2.resize(pixels, shape, interpolation=cv2.INTER_LINEAR)
                pictures.append(cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, 95])[1])
        lengths = np.array([len(picture) for picture in pictures])
        np.savez(folder / f"{name}.npz", lengths=lengths, jpegs=np.concatenate(pictures))
        shutil.copyfile(shared(name, f"{name}.onnx"), folder / f"{name}.onnx")


def stored_pictures(folder: Path, name: str) -> np.ndarray:
    """Return what `prepare` packed: BGR, uint8 [n, 3, 416, 416]."""
    packed = np.load(folder / f"{name}.npz")
    parts = np.split(packed["jpegs"], np.cumsum(packed["lengths"])[:-1])
    opened = [np.asarray(Image.open(io.BytesIO(part.tobytes()))) for part in parts]
    return np.stack([picture[:, :, ::-1].transpose(2, 0, 1) for picture in opened])


def detector(folder: Path, name: str) -> Any:
    """Return the float detector."""
    import yolox_model

    shape = yolox_model.NANO if name == "yolox_nano" else replace(yolox_model.TINY, classes=1)
    return yolox_model.load(folder / f"{name}.onnx", shape)


def speed(folder: Path, batch: int, *, compile_too: bool) -> None:
    """Print time and memory of a training step."""
    import torch

    from quantry.torchfront import capture, freeze_batch_norm, learn_scales, quantize_graph

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    body = detector(folder, "yolox_tiny_click").base_model
    pictures = stored_pictures(folder, "yolox_tiny_click")[:8].astype(np.float32)
    quantized = quantize_graph(
        capture(body, torch.from_numpy(pictures[:1])), list(pictures[:, None]), document_recipe()
    )
    images = torch.from_numpy(pictures).repeat(batch // 8, 1, 1, 1).cuda()

    def measured(model: Any, precision: Any) -> tuple[float, float]:
        model.cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
                leaves = torch.utils._pytree.tree_leaves(model(images))
                loss = sum(leaf.float().square().mean() for leaf in leaves)
            loss.backward()
            optimizer.step()

        for _ in range(5):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 5)
        return min(times), torch.cuda.max_memory_allocated() / 2**30

    def variants() -> Iterator[tuple[str, Any]]:
        yield "float", copy.deepcopy(body)
        yield "quantized, batch statistics", copy.deepcopy(quantized)
        frozen = copy.deepcopy(quantized)
        freeze_batch_norm(frozen)
        yield "quantized, statistics frozen", frozen
        learned = copy.deepcopy(frozen)
        learn_scales(learned)
        yield "quantized, frozen, scales learned", learned

    # Compiling takes longer than measuring, so that only the two ends are compiled.
    kinds = [(False, "float32"), (False, "bfloat16"), *([(True, "float32")] if compile_too else [])]
    for compiled, precision in kinds:
        base: tuple[float, float] | None = None
        for label, model in itertools.islice(variants(), 2 if compiled else None):
            run = torch.compile(model) if compiled else model
            found = measured(run, precision)
            base = base or found
            print(
                f"{'compiled' if compiled else 'eager':8} {precision:8} {label:34} "
                f"{found[0] * 1e3:7.1f} ms {found[0] / base[0]:5.2f}x  "
                f"{found[1]:6.2f} GiB {found[1] / base[1]:5.2f}x",
                flush=True,
            )
            del model, run
            torch.cuda.empty_cache()


def train(folder: Path, out: Path, name: str, options: argparse.Namespace) -> None:
    """Calibrate and train, and write both as ONNX."""
    import torch

    from quantry.torchfront import QatOptions, capture, export, qat, quantize_graph

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    model = detector(folder, name)
    pictures = torch.from_numpy(stored_pictures(folder, name))
    samples = [picture[None].float() for picture in pictures[:48]]
    start = time.perf_counter()
    body = capture(model.base_model, samples[0])
    quantized = quantize_graph(body, samples, document_recipe())
    model.base_model = quantized
    print(f"calibrated in {time.perf_counter() - start:.0f} s", flush=True)
    print(export(model, out / f"{name}.ptq.onnx", samples[0]), flush=True)
    start = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step} loss {loss:.5f} {time.perf_counter() - start:.0f} s", flush=True)

    quantized.cuda()
    batches = Augmented(pictures.cuda(), options.batch)
    rates = QatOptions(learning_rate=options.rate, scale_rate=options.scale_rate or None, decay=0.995)
    if options.seconds:
        trial = copy.deepcopy(quantized)
        for count in (5, 20):  # the first calls choose kernels
            torch.cuda.synchronize()
            begun = time.perf_counter()
            qat(trial, batches, label_free(trial, options.features), replace(rates, steps=count))
            torch.cuda.synchronize()
            each = (time.perf_counter() - begun) / count
        options.steps = min(options.steps, int(options.seconds / each))
        print(f"{each * 1e3:.0f} ms a step, {options.steps} steps", flush=True)
        del trial
    loss = label_free(quantized, options.features)
    trained = qat(quantized, batches, loss, replace(rates, steps=options.steps), report=report)
    model.base_model = trained.cpu()
    print(export(model, out / f"{name}.{options.label}.onnx", samples[0]), flush=True)


def label_free(student: Any, features: float) -> Callable[[Any, Any], Any]:
    """Return a loss that asks for the float model's answers: scores as soft labels, boxes where there are objects."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    from quantry.torchfront import DistillationLoss

    names = [name for name in student.layout.quantizers if name.startswith(("silu", "cat", "add"))]
    inside = DistillationLoss(student, tensors=[name for name in names if not name.endswith("_sigmoid")])

    def loss(_: Any, images: Any) -> Any:
        distance, found, wanted = inside.compare(images)
        total = features * distance
        for (box, obj, cls), (true_box, true_obj, true_cls) in zip(found, wanted, strict=True):
            chance = true_obj.sigmoid()
            weight = chance * true_cls.sigmoid().amax(1, keepdim=True)
            norm = weight.sum() + 1.0
            total = total + (cross_entropy(obj, chance, reduction="sum") - _entropy(chance)) / norm
            truth = true_cls.sigmoid()
            parted = cross_entropy(cls, truth, reduction="none") - cross_entropy(true_cls, truth, reduction="none")
            total = total + (parted * weight).sum() / norm
            total = total + ((box - true_box).abs() * weight).sum() / norm
        return total

    def _entropy(chance: Any) -> Any:
        return torch.special.entr(chance).sum() + torch.special.entr(1 - chance).sum()

    return loss


class Augmented:
    """Endless batches from few pictures: mirrored, scaled, shifted, joined by four, brightened."""

    def __init__(self, pictures: Any, batch: int) -> None:
        self.pictures, self.batch = pictures, batch

    def __iter__(self) -> Iterator[Any]:
        import torch
        from torch.nn import functional

        while True:
            count, device = self.batch, self.pictures.device
            chosen = self.pictures[torch.randint(len(self.pictures), (count,), device=device)].float()
            factor = torch.empty(count, device=device).uniform_(0.6, 1.6)
            mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
            shift = torch.empty(count, 2, device=device).uniform_(-0.3, 0.3)
            zero = torch.zeros_like(factor)
            rows = torch.stack([mirror / factor, zero, shift[:, 0], zero, 1 / factor, shift[:, 1]], 1)
            grid = functional.affine_grid(rows.reshape(-1, 2, 3), chosen.shape, align_corners=False)
            moved = functional.grid_sample(chosen - 114, grid, align_corners=False) + 114
            gain = torch.empty(count, 1, 1, 1, device=device).uniform_(0.7, 1.3)
            tint = torch.empty(count, 3, 1, 1, device=device).uniform_(-15, 15)
            bright = (moved * gain + tint).clamp(0, 255)
            quarter = count // 4
            tiles = functional.interpolate(bright, scale_factor=0.5, mode="bilinear")[: quarter * 4]
            tiles = tiles.reshape(quarter, 2, 2, 3, SIZE // 2, SIZE // 2).permute(0, 3, 1, 4, 2, 5)
            joined = tiles.reshape(quarter, 3, SIZE, SIZE)
            plain = chosen[: count // 4]
            yield torch.cat([bright[: count - 2 * quarter], joined, plain]).round()


def score(out: Path, limit: int | None) -> None:
    """Print the average precision of every file."""
    from benchmarks.accuracy.suites import find_suite

    for path in sorted(out.glob("*.onnx")):
        suite = find_suite(path.name.split(".")[0])
        found = suite.score(path, limit)
        print(path.name, f"{found.value:.4f}", found.details, flush=True)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["prepare", "speed", "train", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("name", nargs="?", choices=sorted(PICTURES))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--scale-rate", type=float, default=3e-3)
    parser.add_argument("--features", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="train no longer than this")
    parser.add_argument("--compiled", action="store_true", help="measure compiled steps too")
    parser.add_argument("--label", default="qat")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.folder)
    elif options.command == "speed":
        speed(options.folder, options.batch, compile_too=options.compiled)
    elif options.command == "train":
        train(options.folder, options.out, options.name, options)
    else:
        score(options.folder, options.limit)


if __name__ == "__main__":
    main()
