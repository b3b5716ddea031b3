"""Qualcomm Hexagon: the HTP backend of QNN through onnxruntime."""

from quantry.recipe import DataType, FixedScale
from quantry.targets.rules import (
    Centred,
    FixedScales,
    Granularity,
    NoOperators,
    NoOverflow,
    OneType,
    OperatorTypes,
    QuantizedInputs,
    RedundantFunctions,
    RefusedTypes,
    SecondOperand,
    SmallestRange,
    StaticFormats,
    StaticShapes,
    Types,
)
from quantry.targets.target import Target

_CONFIG = "onnxruntime, quantization/execution_providers/qnn/quant_config.py"
_MEASURED = "measured with onnxruntime-qnn 2.7 and its HTP emulator"
_CPU = "the node runs on the CPU, or the session fails where fallback is disabled"

QNN_HTP = Target(
    name="qnn-htp",
    summary="Qualcomm Hexagon NPU: uint8 or uint16 activations, int8 weights",
    recommended=("RECOMMENDED-HTP", "RECOMMENDED-HTP-16"),
    rules=(
        StaticShapes(
            source=_MEASURED,
            consequence="no node runs on HTP: everything runs on the CPU, silently",
        ),
        StaticFormats(source=_CONFIG, consequence=_CPU),
        Types(
            activation=(DataType.UINT8, DataType.INT8, DataType.UINT16),
            weight=(DataType.INT8, DataType.UINT8, DataType.INT16),
            bias=(DataType.INT32,),
            source=f"{_CONFIG}; {_MEASURED}: int16 is refused by GlobalAveragePool, AveragePool, Clip and 22 others; "
            "with an int8 bias, 4 of 10 results of a Conv differ",
            consequence=_CPU,
        ),
        Granularity(weights_per_channel=True, source=_CONFIG, consequence=_CPU),
        Centred(roles=("bias",), source=_CONFIG, consequence=_CPU),
        SecondOperand(
            operator="MatMul",
            first=DataType.UINT16,
            second=(DataType.UINT8, DataType.INT8),
            source=f"{_CONFIG}; {_MEASURED}: 30 dB instead of 80 dB",
            consequence="HTP rounds the second operand itself, so results differ",
        ),
        FixedScales(
            entries=(
                FixedScale("Sigmoid", DataType.UINT16, 2.0**-16),
                FixedScale("Softmax", DataType.UINT16, 2.0**-16),
                FixedScale("Tanh", DataType.UINT16, 2.0**-15, 32768),
            ),
            source=_CONFIG,
            consequence="HTP computes with its own scale, so results differ",
        ),
        NoOverflow(source=_CONFIG, consequence="sums wrap around silently"),
        SmallestRange(width=1e-4, source=_CONFIG, consequence="the session fails or results are wrong"),
        OperatorTypes(
            entries=(
                RefusedTypes(("HardSigmoid", "LeakyRelu", "Neg", "LogSoftmax", "Softmax"), (DataType.INT8,)),
                RefusedTypes(("PRelu", "BatchNormalization"), (DataType.UINT16,)),
            ),
            instead=DataType.UINT8,
            source=f"{_MEASURED}; Softmax in int8 is taken, and wrong",
            consequence=_CPU,
        ),
        OneType(except_operators=("MatMul",), source=_CONFIG, consequence=_CPU),
        RedundantFunctions(
            source=f"{_MEASURED}; onnxruntime, QDQ node units",
            consequence="the operator runs in float, and its int32 bias on the CPU",
        ),
        QuantizedInputs(
            operators=("Pad",),
            source=f"{_MEASURED}: 3 x 224 x 224 fails in float, with a message about memory, and runs in 8 bits",
            consequence="the session fails if the tensor is large",
        ),
        NoOperators(
            operators=("If", "Loop", "Scan", "Erf", "ReduceProd"),
            source=f"{_MEASURED}; onnxruntime, QNN execution provider",
            consequence=_CPU,
        ),
    ),
    backend="qnn",
    float_elsewhere=True,
    notes=(
        "16-bit weights of Conv need HTP architecture v73 or later.",
        "onnxruntime-qnn 2.7 computes a 16-bit MatMul wrongly before Tanh, and after LayerNormalization per channel.",
        "`quantry diagnose FLOAT QUANTIZED --target qnn-htp` shows such nodes; 8 bits are right.",
    ),
)
