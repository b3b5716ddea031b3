"""Intel OpenVINO: its CPU plugin, which runs here, and the rules of its NPU."""

from quantry.recipe import DataType
from quantry.targets.rules import Granularity, NoOverflow, StaticFormats, StaticShapes, Types
from quantry.targets.target import Target

_NNCF = "NNCF, and onnxruntime PR 20622"
_FLOAT = "the node runs in float"

OPENVINO_CPU = Target(
    name="openvino-cpu",
    summary="OpenVINO's CPU plugin: 8-bit activations and weights; 16 bits run in float",
    recommended=("RECOMMENDED-CPU",),
    rules=(
        StaticFormats(source=_NNCF, consequence=_FLOAT),
        Types(
            activation=(DataType.UINT8, DataType.INT8),
            weight=(DataType.INT8, DataType.UINT8),
            bias=(DataType.INT32, DataType.INT8),
            source="measured with OpenVINO 2026.4: 52 of 52 Conv of MobileNetV2 in u8, none with 16 bits",
            consequence=_FLOAT,
        ),
        Granularity(weights_per_channel=True, source=_NNCF, consequence=_FLOAT),
        NoOverflow(source=_NNCF, consequence="sums wrap around silently"),
    ),
    backend="openvino",
)

OPENVINO_NPU = Target(
    name="openvino-npu",
    summary="Intel NPU through OpenVINO: 8-bit Conv, MatMul and Add",
    recommended=("RECOMMENDED-CPU",),
    rules=(
        StaticShapes(source="OpenVINO, NPU device", consequence="the compiler rejects the model"),
        StaticFormats(source=_NNCF, consequence=_FLOAT),
        Types(
            activation=(DataType.UINT8, DataType.INT8),
            weight=(DataType.INT8, DataType.UINT8),
            bias=(DataType.INT32, DataType.INT8),
            source="onnxruntime PR 20622, OpenVINO PR 32266",
            consequence="16-bit pairs are ignored",
        ),
        Granularity(weights_per_channel=True, source=_NNCF, consequence=_FLOAT),
        NoOverflow(source=_NNCF, consequence="sums wrap around silently"),
    ),
    notes=("Only Conv, MatMul and Add keep their pairs; others run in float16.",),
)
