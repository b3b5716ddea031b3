"""Quantize YOLOX for an NPU, after training and by training on, without editing the model.

    python PTQ_QAT_exp.py -c=weights/yolox_tiny.pth --data_dir=COCO/images

Weights are a published checkpoint (``.pth``) or an ONNX export of one; the pictures' folder has ``instances.json`` (or
another COCO file given by ``--labels``) next to it, and calibration pictures in ``calib`` next to it or in
``--calibration``. Without weights, those of the shared data are used where they are found (``$QUANTRY_DATA``, or
``../shared/data`` next to the checkout), else the detector that quantry ships, with scenes it draws.

Every step prints a row: float, PTQ (calibration and, label-free, better rounding), QAT (label-free distillation).
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import detection_tasks
import label_loss
import torch
import yolox_model
from detection_tasks import Task
from torch import nn

from quantry.torch import (
    Config,
    Dtype,
    Exported,
    ExporterConfig,
    JsonExporterConfig,
    ModelExporter,
    ModelQuantizer,
    ObserverBase,
    PerTensorPowOf2MinMSEObserver,
    QatOptions,
    QSchemeType,
    QuantizationConfig,
    QuantizationMode,
    QuantizationSpec,
    QuantizedModule,
    RoundType,
    ScaleType,
    balance_channels,
    choose_scales,
    qat,
    tune_weights,
)

SHAPES = {"nano": yolox_model.NANO, "tiny": yolox_model.TINY}


def specification(observer: type[ObserverBase] = PerTensorPowOf2MinMSEObserver) -> QuantizationSpec:
    """Return int8 with one power-of-two scale for each tensor."""
    return QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=observer,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=False,
    )


def configuration(
    algorithms: tuple[Any, ...],
    exclude: tuple[str, ...] = (),
    observer: type[ObserverBase] = PerTensorPowOf2MinMSEObserver,
) -> Config:
    """Return what weights, biases and activations become; the observer is that of activations, exclude stays float."""
    constants, activations = specification(), specification(observer)
    layer = QuantizationConfig(weight=constants, input_tensors=activations, output_tensors=activations, bias=constants)
    return Config(
        global_quant_config=layer,
        quant_mode=QuantizationMode.fx_graph_mode,
        exclude=exclude,
        algo_config=list(algorithms) or None,
    )


def float_model(options: argparse.Namespace) -> nn.Module:
    """Return the float detector; its ``base_model`` is what is quantized."""
    if options.ckpt is None:
        return detection_tasks.EmbeddedDetector()
    shape = replace(SHAPES[options.model], classes=options.classes)
    return yolox_model.load(options.ckpt, shape)


def with_shared_data(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in weights and pictures of the shared data where none are given and they are found."""
    data_folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("QUANTRY_DATA", data_folder)) / "yolox_tiny_click"
    if options.ckpt is None and not options.embedded and folder.is_dir():
        options.ckpt, options.data_dir = folder / "yolox_tiny_click.onnx", folder / "images"
        options.classes = 1
    return options


def quantize(model: nn.Module, task: Task, algorithms: tuple[Any, ...] | None = None) -> QuantizedModule:
    """Calibrate ``base_model`` and replace it by its quantized version; None uses the algorithms that suit it."""
    chosen = getattr(model, "algorithms", ("gptq",)) if algorithms is None else algorithms
    observer = getattr(model, "observer", PerTensorPowOf2MinMSEObserver)
    quantizer = ModelQuantizer(configuration(chosen, getattr(model, "float_part", ()), observer))
    source = getattr(model, "source", model.base_model)  # the embedded detector comes as an ONNX file
    pictures = task.calibration()
    quantized = quantizer.quantize_model(source, pictures)
    if algorithms is None and hasattr(model, "importance"):
        choose_scales(quantized, pictures, model.importance)
        quantized = balance_channels(quantized, pictures, model.importance)
        quantized = tune_weights(quantized, pictures, model.rounding)
    model.base_model = quantized
    return quantized


def train(module: QuantizedModule, task: Task, options: argparse.Namespace) -> None:
    """Train with the float model as the teacher; scales are learned, those of the embedded detector stay."""
    module.to(options.device)

    def report(step: int, loss: float) -> None:
        if step % 20 == 0:
            print(f"  step {step:4}  loss {loss:.5f}", flush=True)

    settings = task.settings(QatOptions(steps=options.steps, learning_rate=options.rate), options.device)
    qat(module, task.training(options.batch), task.loss(module), settings, report=report)
    module.cpu()


def export(model: nn.Module, task: Task, folder: Path) -> Exported:
    """Freeze, write ONNX, and say how it compares with torch."""
    final = ModelQuantizer.freeze(model)
    exporter = ModelExporter(config=ExporterConfig(json_export_config=JsonExporterConfig()), export_dir=folder)
    # For NPU compilers a batch of one.
    return exporter.export_onnx_model(final, task.calibration()[0][:1])


def main() -> None:
    """Run all steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--ckpt", type=Path, help="weights: .pth or .onnx; none takes the embedded detector")
    parser.add_argument("--embedded", action="store_true", help="take the detector that quantry ships")
    parser.add_argument("--data_dir", type=Path, help="folder of pictures to evaluate on")
    parser.add_argument("--labels", type=Path, help="COCO file; default: instances.json next to the folder of pictures")
    parser.add_argument("--calibration", type=Path, help="folder of pictures to calibrate on; calib by default")
    parser.add_argument("--model", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--limit", type=int, default=200, help="pictures to evaluate on")
    parser.add_argument(
        "--algorithms", nargs="*", help="label-free algorithms of the PTQ step, such as smoothquant gptq"
    )
    parser.add_argument("--steps", type=int, default=200, help="training steps; 0 leaves QAT out")
    parser.add_argument("--train_labels", action="store_true", help="train on labels too; the embedded detector alone")
    parser.add_argument("--scenes", type=int, default=512, help="scenes that the embedded detector is trained on")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("yolox_export"))
    options = parser.parse_args()
    if options.train_labels and (options.ckpt is not None or not options.embedded):
        parser.error("--train_labels is for the embedded detector, whose scenes have labels; give --embedded")
    if options.embedded and options.ckpt is not None:
        parser.error("--embedded and weights (-c) exclude each other")
    for name in ("scenes", "batch", "limit"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more, got {getattr(options, name)}")
    options = with_shared_data(options)
    if options.ckpt is not None and options.data_dir is None:
        parser.error("--data_dir must name the folder of pictures where weights are given")
    torch.manual_seed(0)
    task = detection_tasks.find_task(options)
    if options.train_labels:
        task = label_loss.LabelledTask(task.limit, task.drawn)
    model = float_model(options)
    rows = [("FP32", *task.score(model))]
    quantized = quantize(model, task, None if options.algorithms is None else tuple(options.algorithms))
    rows.append(("PTQ int8", *task.score(model)))
    if options.steps:
        train(quantized, task, options)
        rows.append(("QAT int8", *task.score(model)))
    done = export(model, task, options.out)
    print(detection_tasks.table(rows))
    print(done)


if __name__ == "__main__":
    main()
