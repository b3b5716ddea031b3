"""The torch path, on a GPU where there is one: what fake quantization costs, and what label-free training recovers.

    python -m benchmarks.torch_training prepare FOLDER            pictures and weights of the shared data, packed
    python -m benchmarks.torch_training speed FOLDER              time and memory of a step, float and quantized
    python -m benchmarks.torch_training calibrate FOLDER OUT NAME equalize, calibrate and round; write ONNX and module
    python -m benchmarks.torch_training train FOLDER OUT NAME     train without labels; write ONNX and module
    python -m benchmarks.torch_training score OUT                 average precision of the files, with their evaluators

``prepare`` and ``score`` need the shared data, the others only what ``prepare`` wrote. ``train --start FILE.pt`` goes
on from a module that ``calibrate`` or ``train`` wrote; else it calibrates first.
"""

import argparse
import copy
import io
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
    resolve_recipe,
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


def recommended_recipe() -> Recipe:
    """The same types, with all that the preset for NPUs does: SmoothQuant, ranges chosen by output error, GPTQ."""
    preset, _ = resolve_recipe("RECOMMENDED-NPU")
    return replace(preset, plan=document_recipe().plan)


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


def speed(folder: Path, batch: int, *, compiled: bool) -> None:
    """Print time and memory of a training step; torch counts no memory of recorded kernels, and none on a CPU."""
    import torch

    from quantry.torchfront import capture, quantize_graph

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    body = detector(folder, "yolox_tiny_click").base_model
    pictures = stored_pictures(folder, "yolox_tiny_click")[:8].astype(np.float32)
    quantized = quantize_graph(
        capture(body, torch.from_numpy(pictures[:1])), list(pictures[:, None]), document_recipe()
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.from_numpy(pictures).repeat(batch // 8, 1, 1, 1).to(device)
    modes = [("eager", "float32"), ("eager", "bfloat16"), ("recorded", "float32")]
    modes = modes if device == "cuda" else modes[:1]
    for mode, precision in [("compiled", "float32")] if compiled else modes:
        base: tuple[float, float] | None = None
        for label, model in variants(body, quantized):
            if mode == "compiled" and label.endswith("batch statistics"):
                continue  # compiling takes longer than measuring
            found = measured(started(model.to(device).train(), mode, images), images, precision)
            base = base or found
            memory = f"{found[1]:6.2f} GiB {found[1] / base[1]:5.2f}x" if found[1] else ""
            print(
                f"{mode:8} {precision:8} {label:34} {found[0] * 1e3:7.1f} ms {found[0] / base[0]:5.2f}x  {memory}",
                flush=True,
            )
            del model
            torch.cuda.empty_cache()


def variants(body: Any, quantized: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is compared, the float model first."""
    from quantry.torchfront import freeze_batch_norm, learn_scales

    yield "float", copy.deepcopy(body)
    yield "quantized, batch statistics", copy.deepcopy(quantized)
    frozen = copy.deepcopy(quantized)
    freeze_batch_norm(frozen)
    yield "quantized, statistics frozen", frozen
    learned = copy.deepcopy(frozen)
    learn_scales(learned)
    yield "quantized, frozen, scales learned", learned


def started(model: Any, mode: str, images: Any) -> Any:
    """Return the model as it is run: as it is, compiled, or with its kernels recorded."""
    import torch

    if mode == "recorded":
        return torch.cuda.make_graphed_callables(model, (images,), allow_unused_input=True)
    return torch.compile(model) if mode == "compiled" else model


def measured(model: Any, images: Any, precision: str) -> tuple[float, float]:
    """Return the seconds of a training step and the peak of its memory in GiB, 0 on a CPU."""
    import torch

    optimizer, on_gpu = torch.optim.SGD(model.parameters(), 1e-9), images.is_cuda
    warming, runs, steps = (5, 5, 5) if on_gpu else (1, 5, 1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            leaves = torch.utils._pytree.tree_leaves(model(images))
            loss = sum(leaf.float().square().mean() for leaf in leaves)
        loss.backward()
        optimizer.step()

    for _ in range(warming):
        step()
    wait = torch.cuda.synchronize if on_gpu else torch.cpu.synchronize
    wait()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append((time.perf_counter() - start) / steps)
    return min(times), torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0


def calibrate(folder: Path, out: Path, name: str) -> None:
    """Quantize after training and write it."""
    import torch

    from quantry.torchfront import capture, quantize_graph

    model = detector(folder, name)
    samples = [torch.from_numpy(picture[None]).float() for picture in stored_pictures(folder, name)[:48]]
    start = time.perf_counter()
    quantized = quantize_graph(capture(model.base_model, samples[0]), samples, recommended_recipe())
    print(f"calibrated in {time.perf_counter() - start:.0f} s", flush=True)
    written(model, quantized, out / f"{name}.ptq", samples[0])


def written(model: Any, quantized: Any, stem: Path, example: Any) -> None:
    """Write a module for further training, and the detector around it as ONNX."""
    import torch

    from quantry.torchfront import export

    stem.parent.mkdir(parents=True, exist_ok=True)
    torch.save(quantized, f"{stem}.pt")
    model.base_model = quantized
    print(export(model, Path(f"{stem}.onnx"), example), flush=True)


def train(folder: Path, out: Path, name: str, options: argparse.Namespace) -> None:
    """Train from a written module, or calibrate first; write ONNX and module."""
    import torch

    from quantry.torchfront import qat

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = detector(folder, name)
    pictures = torch.from_numpy(stored_pictures(folder, name))
    if options.start is None:
        calibrate(folder, out, name)
    quantized = torch.load(options.start or out / f"{name}.ptq.pt", weights_only=False).to(device)
    batches = Augmented(pictures.to(device), options.batch, options.size)
    if options.seconds:
        options.steps = min(options.steps, int(options.seconds / step_time(copy.deepcopy(quantized), batches, options)))
        print(f"{options.steps} steps", flush=True)
    start = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step} loss {loss:.5f} {time.perf_counter() - start:.0f} s", flush=True)

    loss = label_free(quantized, options)
    trained = qat(quantized, batches, loss, training_options(options, options.steps), report=report)
    written(model, trained.cpu(), out / f"{name}.{options.label}", pictures[:1].float())


def training_options(options: argparse.Namespace, steps: int) -> Any:
    """Return the settings of `qat`."""
    from quantry.torchfront import QatOptions

    return QatOptions(
        steps=steps,
        learning_rate=options.rate,
        scale_rate=options.scale_rate or None,
        decay=0.998,
    )


def step_time(trial: Any, batches: Any, options: argparse.Namespace) -> float:
    """Return the seconds of a training step, after those in which kernels are chosen and recorded."""
    from quantry.torchfront import qat

    times: list[float] = []
    settings = training_options(options, 40)
    qat(trial, batches, label_free(trial, options), settings, report=lambda *_: times.append(time.perf_counter()))
    each = (times[-1] - times[9]) / (len(times) - 10)
    print(f"{each * 1e3:.1f} ms a step of {options.batch} pictures", flush=True)
    return each


def label_free(student: Any, options: argparse.Namespace) -> Callable[[Any, Any], Any]:
    """Return a loss that asks for the float model's answers: scores as soft labels, boxes where there are objects."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    from quantry.torchfront import DistillationLoss, RecordedLoss

    names = [name for name in student.layout.quantizers if name.startswith(("silu", "cat", "add"))]
    inside = DistillationLoss(student, tensors=[name for name in names if not name.endswith("_sigmoid")])

    def loss(_: Any, images: Any) -> Any:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=options.bfloat16, cache_enabled=False):
            distance, found, wanted = inside.compare(images)
        total = options.features * distance
        for levels, true_levels in zip(found, wanted, strict=True):
            box, obj, cls = (part.float() for part in levels)
            true_box, true_obj, true_cls = (part.float() for part in true_levels)
            chance, truth = true_obj.sigmoid(), true_cls.sigmoid()
            weight = chance * truth.amax(1, keepdim=True)
            norm = weight.sum() + 1.0
            total = total + (cross_entropy(obj, chance, reduction="sum") - _entropy(chance).sum()) / norm
            parted = cross_entropy(cls, truth, reduction="none") - _entropy(truth)
            total = total + (parted * weight).sum() / norm
            total = total + ((box - true_box).abs() * weight).sum() / norm
        return total

    def _entropy(chance: Any) -> Any:
        return torch.special.entr(chance) + torch.special.entr(1 - chance)

    return loss if options.eager else RecordedLoss(loss)


class Augmented:
    """Endless batches from few pictures: mirrored, scaled, stretched, shifted, tinted, joined by four or nine."""

    def __init__(self, pictures: Any, batch: int, size: int) -> None:
        self.pictures, self.batch, self.size = pictures, batch, size

    def __iter__(self) -> Iterator[Any]:
        import torch

        while True:
            four, nine, plain = (self.batch // part for part in (4, 8, 8))
            yield torch.cat(
                [
                    self._changed(self.batch - four - nine - plain, self.size),
                    self._joined(four, 2),
                    self._joined(nine, 3),
                    self._sampled(self._chosen(plain), self.size),
                ]
            ).round()

    def _chosen(self, count: int) -> Any:
        import torch

        places = torch.randint(len(self.pictures), (count,), device=self.pictures.device)
        return self.pictures[places].float()

    def _sampled(self, pictures: Any, size: int) -> Any:
        from torch.nn import functional

        if pictures.shape[-1] == size:
            return pictures
        return functional.interpolate(pictures, (size, size), mode="bilinear", antialias=True)

    def _changed(self, count: int, size: int) -> Any:
        import torch
        from torch.nn import functional

        def drawn(low: float, high: float, *shape: int) -> Any:
            return torch.empty(*shape, device=self.pictures.device).uniform_(low, high)

        pictures = self._chosen(count)
        factor, stretch = torch.exp2(drawn(-0.8, 0.8, count)), torch.exp2(drawn(-0.25, 0.25, count))
        mirror = torch.where(drawn(0, 1, count) < 0.5, -1.0, 1.0)
        shift, zero = drawn(-0.4, 0.4, count, 2), torch.zeros_like(factor)
        rows = torch.stack(
            [mirror / (factor * stretch), zero, shift[:, 0], zero, stretch / factor, shift[:, 1]], 1
        ).reshape(-1, 2, 3)
        grid = functional.affine_grid(rows, [count, 3, SIZE, SIZE], align_corners=False)
        moved = functional.grid_sample(pictures - 114, grid, align_corners=False) + 114
        grey = moved.mean(1, keepdim=True)
        vivid = grey + (moved - grey) * drawn(0.5, 1.5, count, 1, 1, 1)
        bright = vivid * drawn(0.6, 1.4, count, 1, 1, 1) + drawn(-20, 20, count, 3, 1, 1)
        return self._sampled(bright.clamp(0, 255), size)

    def _joined(self, count: int, side: int) -> Any:
        part = -(-self.size // side)
        tiles = self._changed(count * side * side, part).reshape(count, side, side, 3, part, part)
        joined = tiles.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, side * part, side * part)
        return joined[..., : self.size, : self.size]


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
    parser.add_argument("command", choices=["prepare", "speed", "calibrate", "train", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("name", nargs="?", choices=sorted(PICTURES))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--scale-rate", type=float, default=3e-3)
    parser.add_argument("--size", type=int, default=SIZE, help="side of the training pictures")
    parser.add_argument("--bfloat16", action="store_true", help="train in mixed precision")
    parser.add_argument("--eager", action="store_true", help="do not record kernels")
    parser.add_argument("--features", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="train no longer than this")
    parser.add_argument("--start", type=Path, help="module to go on from; none calibrates first")
    parser.add_argument("--compiled", action="store_true", help="measure compiled steps, and no others")
    parser.add_argument("--label", default="qat")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.folder)
    elif options.command == "speed":
        speed(options.folder, options.batch, compiled=options.compiled)
    elif options.command == "calibrate":
        calibrate(options.folder, options.out, options.name)
    elif options.command == "train":
        train(options.folder, options.out, options.name, options)
    else:
        score(options.folder, options.limit)


if __name__ == "__main__":
    main()
