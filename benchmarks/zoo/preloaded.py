"""Imports what every process needs, once. Nothing here may start a thread: processes are forked afterwards."""

from importlib import import_module

from benchmarks.zoo.from_torchvision import import_torchvision

import_torchvision()
for name in (
    "onnxruntime.quantization",
    "timm",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._registration",
    "transformers",
    "ultralytics.nn.tasks",
    "quantry.auto",
    "quantry.torchfront.training",
    "quantry.torchfront.onnx_export",
):
    import_module(name)
