"""How fast the quantized models run in onnxruntime on this CPU."""

from benchmarks.harness import Comparison, Row, Side
from benchmarks.rows.quantize import ONNXRUNTIME, QUANTRY, QUARK
from benchmarks.workloads import QuantizedModel, SharedModel

_RUN = "benchmarks.tasks.inference:run_repeatedly"


def _row(suite: str, runs: int) -> Row:
    source = SharedModel(suite)
    per_channel = {"activation": "QUInt8", "per_channel": True}
    models = {
        "quantry CPU_INT8": QuantizedModel(f"{suite}-cpu.onnx", QUANTRY, source, {"recipe": "CPU_INT8"}),
        "quantry U8S8_AAWS": QuantizedModel(f"{suite}-u8s8.onnx", QUANTRY, source, {"recipe": "U8S8_AAWS"}),
        "quantry XINT8": QuantizedModel(f"{suite}-xint8.onnx", QUANTRY, source, {"recipe": "XINT8"}),
        "onnxruntime U8S8 per channel": QuantizedModel(f"{suite}-ort.onnx", ONNXRUNTIME, source, per_channel),
        "quark U8S8_AAWS": QuantizedModel(f"{suite}-quark.onnx", QUARK, source, {"preset": "U8S8_AAWS"}, peer=True),
    }
    return Row(
        name=f"latency/{suite}",
        title=f"{runs} runs of the quantized model on the CPU, {suite}",
        sides=(
            Side("float", _RUN, {"runs": runs}, source),
            *(Side(label, _RUN, {"runs": runs}, model) for label, model in models.items()),
        ),
        comparisons=(
            *(Comparison("float", label) for label in models),
            Comparison("onnxruntime U8S8 per channel", "quantry CPU_INT8"),
            Comparison("quark U8S8_AAWS", "quantry U8S8_AAWS"),
        ),
        repetitions=5,
    )


ROWS = (
    _row("yolox_nano", 80),
    _row("yolox_tiny_click", 40),
    _row("mobilenetv2_035", 300),
    _row("cifar10", 800),
)
