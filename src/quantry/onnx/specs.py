"""Specifications of tensors and layers, as AMD Quark 0.10 and later spell them: `QTensorConfig` and `QLayerConfig`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from enum import Enum
from typing import Any, TypeVar

from quantry.errors import RecipeError, nearest_spelling, require_choice, require_known
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
from quantry.recipe.checked import KnownArguments, field_names

# AMD's names of the types.
Int8, UInt8, Int16, UInt16 = DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16
Int32, UInt32 = DataType.INT32, DataType.UINT32
Float16, BFloat16, BFP16 = DataType.FLOAT16, DataType.BFLOAT16, DataType.BFP16
MX4, MX6, MX9, MXInt8 = DataType.MX4, DataType.MX6, DataType.MX9, DataType.MXINT8
MXFP8E5M2, MXFP8E4M3 = DataType.MXFP8E5M2, DataType.MXFP8E4M3
MXFP6E3M2, MXFP6E2M3, MXFP4E2M1 = DataType.MXFP6E3M2, DataType.MXFP6E2M3, DataType.MXFP4E2M1

_SCALES: dict[Enum, ScaleKind] = {ScaleType.Float32: FloatScale(), ScaleType.PowerOf2: PowerOfTwoScale()}


def parse_data_type(dtype_name: object) -> DataType | None:
    """Return a type by AMD's name, such as "Int8" or "BFloat16", or None if there is none.

    Args:
        dtype_name: The name in any case, or a type.

    Example:
        >>> parse_data_type("UInt16").value
        'uint16'
        >>> parse_data_type("Int7") is None
        True
    """
    if isinstance(dtype_name, DataType):
        return dtype_name
    return next((data_type for data_type in DataType if data_type.value == str(dtype_name).lower()), None)


_Config = TypeVar("_Config", "QTensorConfig", "QLayerConfig")
_MEMBERS = {"scale_type": ScaleType, "calibration_method": CalibMethod, "quant_granularity": QuantGranularity}


def _given(kind: type[_Config], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of plain data after checking that every key is a field."""
    if not isinstance(data, Mapping):
        raise RecipeError(f"{kind.__name__}.from_dict must be given a dict, got {type(data).__name__}")
    require_known(f"{kind.__name__}.from_dict", data, field_names(kind), "be given fields")
    return dict(data)


@dataclass
class QTensorConfig(KnownAttributes, KnownArguments):
    """How one kind of tensor is quantized.

    Attributes:
        symmetric: Fix the zero point at the centre of the type.
        scale_type: Kind of scale.
        calibration_method: How the range is chosen.
        quant_granularity: Number of scales.
        data_type: The type, as `quantry.recipe.DataType` or by its name.

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
        # Scripts edit specifications and also use layers of them as dict keys: hash only what never changes.
        return hash(QTensorConfig.__name__)

    def __eq__(self, other: object) -> bool:
        # The classes differ only in their defaults.
        if not isinstance(other, QTensorConfig):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(QTensorConfig))

    def set_symmetric(self, symmetric: bool) -> None:
        """Set whether the zero point is fixed at the centre of the type."""
        self.symmetric = symmetric

    def set_scale_type(self, scale_type: ScaleType) -> None:
        """Set the kind of scale."""
        self.scale_type = scale_type

    def set_calibration_method(self, calibration_method: CalibMethod) -> None:
        """Set how the range is chosen."""
        self.calibration_method = calibration_method

    def set_quant_granularity(self, quant_granularity: QuantGranularity) -> None:
        """Set the number of scales."""
        self.quant_granularity = quant_granularity

    def set_data_type(self, data_type: DataType | str) -> None:
        """Set the type."""
        self.data_type = data_type

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as plain data, members as text such as ``"CalibMethod.MinMax"``."""
        members = {name: f"{kind.__name__}.{getattr(self, name).name}" for name, kind in _MEMBERS.items()}
        dtype = parse_data_type(self.data_type)
        name = next((name for name, data_type in TYPE_NAMES.items() if data_type is dtype), self.data_type)
        return {"symmetric": self.symmetric, **members, "data_type": name}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> "QTensorConfig":
        """Return the specification for plain data; fields that are absent keep their defaults.

        Args:
            d: Fields by name. A member is text with or without the name of its enumeration.

        Raises:
            RecipeError: A field or a member is unknown; the message suggests the nearest spelling.

        Example:
            >>> QTensorConfig.from_dict({"data_type": "UInt8", "calibration_method": "CalibMethod.MinMax"}).data_type
            <DataType.UINT8: 'uint8'>
        """
        values = _given(cls, d)
        for name, kind in _MEMBERS.items():
            if isinstance(values.get(name), str):
                text = values[name].removeprefix(f"{kind.__name__}.")
                require_choice(f"QTensorConfig.{name}", text, kind.__members__)
                values[name] = kind[text]
        if "data_type" in values:
            values["data_type"] = _data_type(values["data_type"], "QTensorConfig")
        return cls(**values)

    def to_spec(self, field: str) -> TensorSpec:
        """Return the recipe's specification.

        Args:
            field: The field, for messages.

        Raises:
            RecipeError: Something is not supported; the message names the field.
        """
        scale = own_member(self.scale_type, (ScaleType,), f"{field}.scale_type")
        if scale not in _SCALES:
            raise RecipeError(
                f"{field}.scale_type cannot be {scale}: scales are float32 or powers of two, not M / 2**N; the nearest "
                "is ScaleType.PowerOf2"
            )
        granularity = own_member(self.quant_granularity, (QuantGranularity,), f"{field}.quant_granularity")
        if granularity is QuantGranularity.Group:
            raise RecipeError(
                f"{field}.quant_granularity cannot be {granularity}: integer products have one scale for all values "
                "they add up; use QuantGranularity.Channel, a block format such as BFP16Spec(), or UseMatMulNBits"
            )
        dtype = _data_type(self.data_type, field)
        if dtype.is_block:
            return TensorSpec(dtype, granularity=PerBlock())
        per_channel = granularity is QuantGranularity.Channel
        kind = _SCALES[scale] if dtype.is_integer else FloatScale()
        symmetric = self.symmetric or not dtype.is_integer
        return TensorSpec(dtype, symmetric, PerChannel() if per_channel else PerTensor(), kind)

    def to_method(self, field: str) -> Method:
        """Return the calibration method.

        Args:
            field: The field, for messages.

        Raises:
            RecipeError: quantry does not have the method.
        """
        option = f"{field}.calibration_method"
        return method_of(own_member(self.calibration_method, (CalibMethod,), option), option)


TYPE_NAMES: dict[str, DataType] = {name: kind for name, kind in globals().items() if isinstance(kind, DataType)}
"""AMD's name of each type."""


def _data_type(value: object, field: str) -> DataType:
    data_type = parse_data_type(value)
    if data_type is None:
        raise RecipeError(
            f"{field}.data_type must be one of {', '.join(TYPE_NAMES)}, got {value!r}"
            f"{nearest_spelling(str(value), TYPE_NAMES)}"
        )
    return data_type


def _spec(name: str, data_type: DataType, **defaults: Any) -> type[QTensorConfig]:
    """Return a `QTensorConfig` class with other defaults; integers calibrate with Percentile."""
    method = CalibMethod.Percentile if data_type.is_integer else CalibMethod.MinMax
    changes: dict[str, Any] = {"calibration_method": method, "data_type": data_type, **defaults}
    spec_fields = [
        (field.name, field.type, changes[field.name]) for field in fields(QTensorConfig) if field.name in changes
    ]
    # eq=False inherits equality and the hash, which makes instances usable as keys.
    cls = make_dataclass(name, spec_fields, bases=(QTensorConfig,), eq=False, namespace={"__module__": __name__})
    cls.__doc__ = f"{data_type.value}, {'symmetric' if changes.get('symmetric', True) else 'asymmetric'}."
    assert issubclass(cls, QTensorConfig)
    return cls


Int8Spec = _spec("Int8Spec", DataType.INT8)
UInt8Spec = _spec("UInt8Spec", DataType.UINT8, symmetric=False)
# What AMD's integer NPU takes.
XInt8Spec = _spec("XInt8Spec", DataType.INT8, scale_type=ScaleType.PowerOf2, calibration_method=CalibMethod.MinMSE)
Int16Spec = _spec("Int16Spec", DataType.INT16)
UInt16Spec = _spec("UInt16Spec", DataType.UINT16, symmetric=False)
Int32Spec = _spec("Int32Spec", DataType.INT32)
UInt32Spec = _spec("UInt32Spec", DataType.UINT32, symmetric=False)
Float16Spec = _spec("Float16Spec", DataType.FLOAT16)
BFloat16Spec = _spec("BFloat16Spec", DataType.BFLOAT16)
BFP16Spec = _spec("BFP16Spec", DataType.BFP16)
MX4Spec = _spec("MX4Spec", DataType.MX4)
MX6Spec = _spec("MX6Spec", DataType.MX6)
MX9Spec = _spec("MX9Spec", DataType.MX9)
MXFP8E5M2Spec = _spec("MXFP8E5M2Spec", DataType.MXFP8E5M2)
MXFP8E4M3Spec = _spec("MXFP8E4M3Spec", DataType.MXFP8E4M3)
MXFP6E3M2Spec = _spec("MXFP6E3M2Spec", DataType.MXFP6E3M2)
MXFP6E2M3Spec = _spec("MXFP6E2M3Spec", DataType.MXFP6E2M3)
MXFP4E2M1Spec = _spec("MXFP4E2M1Spec", DataType.MXFP4E2M1)
MXInt8Spec = _spec("MXInt8Spec", DataType.MXINT8)

SPECS: dict[str, type[QTensorConfig]] = {
    name: kind
    for name, kind in globals().items()
    if isinstance(kind, type) and issubclass(kind, QTensorConfig) and kind is not QTensorConfig
}
"""Every specification by name."""


def spec_class(dtype: DataType) -> type[QTensorConfig]:
    """Return the specification class of a type; that with float scales for int8."""
    return next(kind for kind in SPECS.values() if kind().data_type == dtype)


@dataclass
class QLayerConfig(KnownAttributes, KnownArguments):
    """How the tensors of a layer are quantized.

    Attributes:
        input_tensors: Activations.
        activation: Another name for ``input_tensors``.
        weight: Weights; None takes the specification of activations.
        bias: Biases; None takes what fits the weight's type.
        output_tensors: What the layer writes. For the whole model it must equal ``input_tensors``, because the output
            of one layer is the input of the next; for single layers it may differ.
    """

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data; only fields with a value."""
        specs = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: spec.to_dict() for name, spec in specs.items() if spec is not None}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> "QLayerConfig":
        """Return the configuration for plain data.

        Args:
            d: Specifications by field: plain data for `QTensorConfig.from_dict`, or None.

        Raises:
            RecipeError: A field or a member is unknown; the message suggests the nearest spelling.

        Example:
            >>> config = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
            >>> QLayerConfig.from_dict(config.to_dict()) == config
            True
        """
        values = _given(cls, d)
        return cls(**{name: None if spec is None else QTensorConfig.from_dict(spec) for name, spec in values.items()})

    def inputs(self) -> QTensorConfig | None:
        """Return the specification of what the layer reads, or None if there is none.

        Raises:
            RecipeError: ``input_tensors`` and ``activation`` differ.
        """
        specs = [spec for spec in (self.input_tensors, self.activation) if spec is not None]
        if any(spec != specs[0] for spec in specs):
            raise RecipeError(
                "QLayerConfig.activation is another name for input_tensors, so they must be equal; "
                f"got {self.activation} and {self.input_tensors}"
            )
        return specs[0] if specs else None

    def activations(self) -> QTensorConfig:
        """Return the specification of the activations of a whole model.

        Raises:
            RecipeError: There is none, or two fields differ.
        """
        spec = self.inputs() or self.output_tensors
        if spec is None:
            raise RecipeError("QLayerConfig.input_tensors must say how activations are quantized, got None")
        if self.output_tensors is not None and self.output_tensors != spec:
            raise RecipeError(
                "QLayerConfig.output_tensors must equal input_tensors for a whole model, because the output of one "
                f"layer is the input of the next; got {self.output_tensors} and {spec}"
            )
        return spec
