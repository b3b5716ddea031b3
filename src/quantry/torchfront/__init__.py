"""The torch front end: capture, quantize after training, train on, freeze, export.

A captured graph is lowered to float ONNX, goes through the very stages of ``quantry.quantize`` (prepare, plan, observe,
scale, tune), and what they decide is built as a torch graph again: plan, rules and scales exist once. Names are loaded
when they are first used, because they need torch.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "BatchNormLayer": "batch_norm_layer",
    "Blueprint": "blueprint",
    "DistillationLoss": "distillation",
    "ExportOptions": "onnx_export",
    "Exported": "onnx_export",
    "FakeQuantizer": "fake_quantizer",
    "FloatScopes": "scopes",
    "MovingAverage": "moving_average",
    "OutputDifference": "onnx_export",
    "QatOptions": "training_loop",
    "QatSchedule": "schedule",
    "QuantizedModule": "quantized_module",
    "RecordedLoss": "recorded_loss",
    "balance_channels": "channel_balance",
    "capture": "graph_capture",
    "choose_scales": "scale_choice",
    "enable_quantizers": "switches",
    "export": "onnx_export",
    "export_for_training": "export_for_training",
    "float_teacher": "distillation",
    "float_twin": "distillation",
    "freeze": "freezing",
    "freeze_batch_norm": "switches",
    "freeze_observers": "switches",
    "install_export_for_training": "export_for_training",
    "is_captured": "graph_capture",
    "is_module": "graph_capture",
    "learn_scales": "switches",
    "qat": "training_loop",
    "quantize_graph": "graph_quantization",
    "retune": "retuning",
    "start_observers": "switches",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605 - one list serves both


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
