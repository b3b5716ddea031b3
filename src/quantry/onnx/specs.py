"""Names of types, as AMD Quark 0.10 and later spell them; each is a `quantry.recipe.DataType`.

What tensors and layers are quantized to, as AMD Quark 0.10 and later spell it.
"""

import enum
from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.onnx.config import KnownAttributes
from quantry.onnx.enums import CalibMethod, QuantGranularity, ScaleType, method_of, own_member
from quantry.recipe import (
    DataType,
    FloatScale,
    Method,
    PerBlock,
    PerChannel,
    PerTensor,
    PowerOfTwoScale,
    ScaleKind,
    TensorSpec,
)
from quantry.recipe.checked import KnownArguments

Int8 = DataType.INT8
UInt8 = DataType.UINT8
Int16 = DataType.INT16
UInt16 = DataType.UINT16
Int32 = DataType.INT32
UInt32 = DataType.UINT32
Float16 = DataType.FLOAT16
BFloat16 = DataType.BFLOAT16
BFP16 = DataType.BFP16

__all__ = [
    "BFP16",
    "BFloat16",
    "DataType",
    "Float16",
    "Int8",
    "Int16",
    "Int32",
    "UInt8",
    "UInt16",
    "UInt32",
]


__all__ = [
    "BFP16Spec",
    "BFloat16Spec",
    "CalibMethod",
    "Float16Spec",
    "Int8Spec",
    "Int16Spec",
    "Int32Spec",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8Spec",
    "QLayerConfig",
    "QTensorConfig",
    "QuantGranularity",
    "ScaleType",
    "UInt8Spec",
    "UInt16Spec",
    "UInt32Spec",
    "XInt8Spec",
]

_KINDS: dict[enum.Enum, ScaleKind] = {ScaleType.Float32: FloatScale(), ScaleType.PowerOf2: PowerOfTwoScale()}


@dataclass
class QTensorConfig(KnownAttributes, KnownArguments):
    """What one kind of tensor is quantized to.

    Attributes:
        symmetric: Whether the zero point is fixed at the centre of the type.
        scale_type: Kind of scale.
        calibration_method: How its range is found.
        quant_granularity: How many scales it has.
        data_type: Its type, as `quantry.recipe.DataType` or by that name.

    Example:
        >>> spec = Int8Spec()
        >>> spec.set_symmetric(False)
        >>> spec.symmetric
        False
    """

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: DataType | str = DataType.INT8

    def __hash__(self) -> int:
        # Of what never changes, since scripts both edit these and use layers of them as keys.
        return hash(type(self).__name__)

    def set_symmetric(self, symmetric: bool) -> None:
        """Set whether the zero point is fixed at the centre of the type."""
        self.symmetric = symmetric

    def set_scale_type(self, scale_type: ScaleType) -> None:
        """Set the kind of scale."""
        self.scale_type = scale_type

    def set_calibration_method(self, calibration_method: CalibMethod) -> None:
        """Set how the range is found."""
        self.calibration_method = calibration_method

    def set_quant_granularity(self, quant_granularity: QuantGranularity) -> None:
        """Set how many scales the tensor has."""
        self.quant_granularity = quant_granularity

    def set_data_type(self, data_type: DataType | str) -> None:
        """Set the type."""
        self.data_type = data_type

    def to_spec(self, where: str) -> TensorSpec:
        """Return the specification.

        Args:
            where: The field, for messages.

        Raises:
            RecipeError: Something cannot be had; the message names the field.
        """
        scale = own_member(self.scale_type, (ScaleType,), f"{where}.scale_type")
        if scale not in _KINDS:
            raise RecipeError(
                f"{where}.scale_type cannot be {scale}: scales are float32 or powers of two, not M / 2**N; the nearest "
                "is ScaleType.PowerOf2"
            )
        granularity = own_member(self.quant_granularity, (QuantGranularity,), f"{where}.quant_granularity")
        if granularity is QuantGranularity.Group:
            raise RecipeError(
                f"{where}.quant_granularity cannot be {granularity}: integer products have one scale for all they sum "
                "over; use QuantGranularity.Channel, a block format such as BFP16Spec(), or UseMatMulNBits"
            )
        dtype = DataType(self.data_type)
        if dtype.is_block:
            return TensorSpec(dtype, granularity=PerBlock())
        several = granularity is QuantGranularity.Channel
        kind = _KINDS[scale] if dtype.is_integer else FloatScale()
        symmetric = self.symmetric or not dtype.is_integer
        return TensorSpec(dtype, symmetric, PerChannel() if several else PerTensor(), kind)

    def to_method(self, where: str) -> Method:
        """Return the calibration method.

        Args:
            where: The field, for messages.

        Raises:
            RecipeError: There is no such method.
        """
        place = f"{where}.calibration_method"
        return method_of(own_member(self.calibration_method, (CalibMethod,), place), place)


@dataclass(eq=False)
class Int8Spec(QTensorConfig):
    """int8, symmetric, Percentile."""

    calibration_method: CalibMethod = CalibMethod.Percentile


@dataclass(eq=False)
class UInt8Spec(Int8Spec):
    """uint8, asymmetric, Percentile."""

    symmetric: bool = False
    data_type: DataType | str = DataType.UINT8


@dataclass(eq=False)
class XInt8Spec(QTensorConfig):
    """int8, symmetric, power-of-two scale, MinMSE: what AMD's integer NPU takes."""

    scale_type: ScaleType = ScaleType.PowerOf2
    calibration_method: CalibMethod = CalibMethod.MinMSE


@dataclass(eq=False)
class Int16Spec(Int8Spec):
    """int16, symmetric, Percentile."""

    data_type: DataType | str = DataType.INT16


@dataclass(eq=False)
class UInt16Spec(UInt8Spec):
    """uint16, asymmetric, Percentile."""

    data_type: DataType | str = DataType.UINT16


@dataclass(eq=False)
class Int32Spec(Int8Spec):
    """int32, symmetric, Percentile."""

    data_type: DataType | str = DataType.INT32


@dataclass(eq=False)
class UInt32Spec(UInt8Spec):
    """uint32, asymmetric, Percentile."""

    data_type: DataType | str = DataType.UINT32


@dataclass(eq=False)
class Float16Spec(QTensorConfig):
    """float16."""

    data_type: DataType | str = DataType.FLOAT16


@dataclass(eq=False)
class BFloat16Spec(QTensorConfig):
    """bfloat16."""

    data_type: DataType | str = DataType.BFLOAT16


@dataclass(eq=False)
class BFP16Spec(QTensorConfig):
    """BFP16: blocks of 8 values with one exponent."""

    data_type: DataType | str = DataType.BFP16


@dataclass(eq=False)
class MX4Spec(QTensorConfig):
    """MX4."""

    data_type: DataType | str = DataType.MX4


@dataclass(eq=False)
class MX6Spec(QTensorConfig):
    """MX6."""

    data_type: DataType | str = DataType.MX6


@dataclass(eq=False)
class MX9Spec(QTensorConfig):
    """MX9."""

    data_type: DataType | str = DataType.MX9


@dataclass(eq=False)
class MXFP8E5M2Spec(QTensorConfig):
    """MXFP8 E5M2."""

    data_type: DataType | str = DataType.MXFP8E5M2


@dataclass(eq=False)
class MXFP8E4M3Spec(QTensorConfig):
    """MXFP8 E4M3."""

    data_type: DataType | str = DataType.MXFP8E4M3


@dataclass(eq=False)
class MXFP6E3M2Spec(QTensorConfig):
    """MXFP6 E3M2."""

    data_type: DataType | str = DataType.MXFP6E3M2


@dataclass(eq=False)
class MXFP6E2M3Spec(QTensorConfig):
    """MXFP6 E2M3."""

    data_type: DataType | str = DataType.MXFP6E2M3


@dataclass(eq=False)
class MXFP4E2M1Spec(QTensorConfig):
    """MXFP4 E2M1."""

    data_type: DataType | str = DataType.MXFP4E2M1


@dataclass(eq=False)
class MXInt8Spec(QTensorConfig):
    """MXINT8."""

    data_type: DataType | str = DataType.MXINT8


@dataclass
class QLayerConfig(KnownAttributes, KnownArguments):
    """What the tensors of a layer are quantized to.

    Attributes:
        input_tensors: Activations.
        activation: Another name of ``input_tensors``.
        weight: Weights; None takes what activations have.
        bias: Biases; None takes what the weight's type suggests.
        output_tensors: What the layer writes. For the whole model it is ``input_tensors``, since a tensor is the output
            of one layer and the input of the next; for single layers it may differ.
    """

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def inputs(self) -> QTensorConfig | None:
        """Return what the layer reads, or None where nothing says it.

        Raises:
            RecipeError: Two fields say different things.
        """
        given = [spec for spec in (self.input_tensors, self.activation) if spec is not None]
        if any(spec != given[0] for spec in given):
            raise RecipeError(
                "QLayerConfig.activation is another name of input_tensors, so they must be equal; "
                f"got {self.activation} beside {self.input_tensors}"
            )
        return given[0] if given else None

    def activations(self) -> QTensorConfig:
        """Return what the activations of a whole model are quantized to.

        Raises:
            RecipeError: Nothing says it, or two fields say different things.
        """
        given = self.inputs() or self.output_tensors
        if given is None:
            raise RecipeError("QLayerConfig.input_tensors must say what activations become, got None")
        if self.output_tensors is not None and self.output_tensors != given:
            raise RecipeError(
                "QLayerConfig.output_tensors must be what input_tensors are for a whole model, because a tensor is the "
                f"output of one layer and the input of the next; got {self.output_tensors} beside {given}"
            )
        return given
