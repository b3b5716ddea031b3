"""Qualcomm Hexagon: the HTP backend of QNN through onnxruntime."""

from quantry.recipe import DataType
from quantry.targets.rules import (
    Centred,
    FixedScale,
    FixedScales,
    Granularity,
    NoOperators,
    OneType,
    SecondOperand,
    SmallestRange,
    StaticFormats,
    StaticShapes,
    Types,
)
from quantry.targets.target import Target

_CONFIG = "onnxruntime, quantization/execution_providers/qnn/quant_config.py"
_CPU = "the node runs on the CPU, or the session fails where fallback is disabled"

QNN_HTP = Target(
    name="qnn-htp",
    summary="Qualcomm Hexagon NPU: uint8 or uint16 activations, int8 weights",
    recommended=("RECOMMENDED-HTP", "RECOMMENDED-HTP-16"),
    rules=(
        StaticShapes(
            source="measured with onnxruntime-qnn 2.7 and the HTP emulator",
            consequence="no node runs on HTP: everything runs on the CPU, silently",
        ),
        StaticFormats(source=_CONFIG, consequence=_CPU),
        Types(
            activation=(DataType.UINT8, DataType.UINT16),
            weight=(DataType.INT8, DataType.UINT8),
            bias=(DataType.INT32,),
            source=_CONFIG,
            consequence=_CPU,
        ),
        Granularity(weights_per_channel=True, source=_CONFIG, consequence=_CPU),
        Centred(roles=("bias",), source=_CONFIG, consequence=_CPU),
        SecondOperand(
            operator="MatMul",
            first=DataType.UINT16,
            second=(DataType.UINT8, DataType.INT8),
            source=_CONFIG,
            consequence=_CPU,
        ),
        OneType(except_operators=("MatMul",), source=_CONFIG, consequence=_CPU),
        FixedScales(
            entries=(
                FixedScale("Sigmoid", DataType.UINT16, -16),
                FixedScale("Softmax", DataType.UINT16, -16),
                FixedScale("Tanh", DataType.UINT16, -15, 32768),
            ),
            source=_CONFIG,
            consequence="HTP computes with its own scale, so results differ",
        ),
        SmallestRange(width=1e-4, source=_CONFIG, consequence="the session fails or results are wrong"),
        NoOperators(operators=("If", "Loop", "Scan"), source="onnxruntime, QNN execution provider", consequence=_CPU),
    ),
    backend="qnn",
    notes=("16-bit weights of Conv need HTP architecture v73 or later",),
)
