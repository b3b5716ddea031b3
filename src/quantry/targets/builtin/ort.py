"""onnxruntime's CPU provider, and onnxruntime-web in a browser or in node."""

from quantry.targets.rules import FasterForms, NoOverflow
from quantry.targets.target import Target

_SUMS = NoOverflow(
    source="ONNX, QLinearConv and QLinearMatMul: sums are int32", consequence="sums wrap around silently"
)

ORT_CPU = Target(
    name="ort-cpu",
    summary="onnxruntime's CPU provider: runs every format, fast with uint8 activations and int8 weights",
    recommended=("RECOMMENDED-CPU",),
    rules=(
        _SUMS,
        FasterForms(
            source="measured with onnxruntime 1.31: a 3x3 QLinearAveragePool takes 24 times as long as in float",
            consequence="the pool or the padding costs more time than its neighbours save",
        ),
    ),
    backend="ort-cpu",
)

ORT_WEB = Target(
    name="ort-web",
    summary="onnxruntime-web (WebAssembly): runs every standard format; int8 saves size, rarely time",
    recommended=("RECOMMENDED-CPU",),
    rules=(_SUMS,),
    backend="ort-web",
    notes=(
        "On small CNNs, WebAssembly is slower with int8 than with float.",
        "WebGPU gave wrong results for int8 (transformers.js issue 1512).",
    ),
)
