"""The torch front end: capture, quantize, train, freeze, export.

A captured graph is lowered to float ONNX and goes through the stages of ``quantry.quantize`` (prepare, plan, observe,
scale, tune). Their decisions are built as a torch graph again, so plan, rules and scales exist once. Names are imported
on first use, because they need torch.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "BatchNormLayer": ".execute.batch_norm_layer",
    "DistillationLoss": "distillation",
    "ExportOptions": "onnx_export",
    "Exported": "onnx_export",
    "FakeQuantizer": ".execute.fake_quantizer",
    "FloatScopes": "graph_quantization",
    "ModuleDefinition": "module_definition",
    "MovingAverage": "training",
    "OutputDifference": "onnx_export",
    "QatOptions": "training",
    "QatSchedule": "training",
    "QuantizedModule": "quantized_module",
    "RecordedLoss": "training",
    "balance_channels": "channel_balance",
    "capture": "graph_capture",
    "choose_scales": "scale_choice",
    "enable_quantizers": "switches",
    "export": "onnx_export",
    "export_for_training": "graph_capture",
    "float_copy": "distillation",
    "float_teacher": "distillation",
    "freeze": "freezing",
    "freeze_batch_norm": "switches",
    "freeze_observers": "switches",
    "install_export_for_training": "graph_capture",
    "is_captured": "graph_capture",
    "is_module": "graph_capture",
    "learn_scales": "switches",
    "load_module": "module_files",
    "qat": "training",
    "quantize_graph": "graph_quantization",
    "save_module": "module_files",
    "start_observers": "switches",
    "tune_weights": "graph_quantization",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605 - one list serves both


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
