"""NVIDIA TensorRT with explicit quantization."""

from quantry.recipe import DataType
from quantry.targets.rules import Centred, Granularity, QuantizedResiduals, StaticFormats, Types
from quantry.targets.target import Target

_REJECTED = "the parser rejects the model"

TENSORRT = Target(
    name="tensorrt",
    summary="NVIDIA TensorRT: symmetric int8 with zero point 0, or 8-bit floats (E4M3FN); int4 for weights only",
    recommended=("RECOMMENDED-TENSORRT",),
    rules=(
        StaticFormats(source="ModelOpt onnx/quantization", consequence=_REJECTED),
        Types(
            activation=(DataType.INT8, DataType.FLOAT8E4M3FN),
            weight=(DataType.INT8, DataType.FLOAT8E4M3FN, DataType.INT4),
            bias=(),
            source="TensorRT issues 2774 and 4698, ModelOpt onnx/quantization; its parser has E4M3FN and no E5M2",
            consequence=_REJECTED,
        ),
        Centred(unsigned=False, source="TensorRT issue 2774", consequence=_REJECTED),
        Granularity(
            weights_per_channel=True, weights_per_group=True, source="ModelOpt onnx/quantization", consequence=_REJECTED
        ),
        QuantizedResiduals(
            source="ModelOpt onnx/quantization",
            consequence="the sum is not fused with the layer before it, so the engine is slower",
        ),
    ),
)
