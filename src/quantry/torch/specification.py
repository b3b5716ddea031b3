"""What one tensor becomes, in the words of Quark for PyTorch."""

from dataclasses import dataclass, field
from typing import Any

from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    FloatScale,
    Granularity,
    Method,
    PerChannel,
    PerTensor,
    PowerOfTwoScale,
    TensorSpec,
)
from quantry.recipe.checked import KnownArguments
from quantry.torch.enums import DATA_TYPES, Dtype, QSchemeType, RoundType, ScaleType, ZeroPointType, check_member
from quantry.torch.observers import LSQSpec, ObserverBase, TQTSpec

_MANDATORY = {
    "observer_cls": "PerTensorMinMaxObserver",
    "is_dynamic": "False",
    "qscheme": "QSchemeType.per_tensor",
    "symmetric": "True",
    "round_method": "RoundType.half_even",
    "scale_type": "ScaleType.float",
}
"""What an integer needs, as the peer has it, with a value that can be used."""
_UNUSED = {
    "group_size": "groups have no scale of their own in ONNX",
    "block_size": "blocks have no scale of their own in ONNX",
    "scale_format": "scales are float32 in ONNX",
    "scale_calculation_mode": "it belongs to block formats",
    "mx_element_dtype": "it belongs to block formats",
    "is_scale_quant": "scales are not quantized in ONNX",
    "enable_buffer_reuse": "it belongs to block formats",
}
_DEFAULT_NUMEL = 4_194_304


def _no_dtype() -> Dtype:
    raise RecipeError(
        "QTensorConfig.dtype must say which number type a tensor gets, got none; give for example "
        "QTensorConfig(dtype=Dtype.int8, observer_cls=PerTensorMinMaxObserver, is_dynamic=False, "
        "qscheme=QSchemeType.per_tensor, symmetric=True, round_method=RoundType.half_even, scale_type=ScaleType.float)"
    )


@dataclass(frozen=True)
class QTensorConfig(KnownArguments):
    """What one kind of tensor becomes; older scripts call it ``QuantizationSpec``.

    Attributes:
        dtype: The number type; must be given.
        observer_cls: The observer, which chooses the calibration method.
        is_dynamic: Whether scales are found at run time; only False.
        qscheme: How many scales.
        ch_axis: Channel axis of ``per_channel``.
        group_size: Only None.
        block_size: Only None.
        symmetric: Whether the zero point is fixed.
        round_method: How halves are rounded.
        scale_type: ``pof2`` asks for powers of two; the observers named PowOf2 give them whatever it says.
        scale_format: Only None.
        scale_calculation_mode: Only None.
        qat_spec: `TQTSpec` or `LSQSpec` for scales that training learns, or None.
        mx_element_dtype: Only None.
        zero_point_type: Type of the zero point.
        is_scale_quant: Only False.
        enable_buffer_reuse: Only False.
        max_input_numel: Only its default; observation here has no such limit.
    """

    dtype: Dtype = field(default_factory=_no_dtype)
    observer_cls: type[ObserverBase] | None = None
    is_dynamic: bool | None = None
    qscheme: QSchemeType | None = None
    ch_axis: int | None = None
    group_size: int | None = None
    block_size: int | None = None
    symmetric: bool | None = None
    round_method: RoundType | None = None
    scale_type: ScaleType | None = None
    scale_format: str | None = None
    scale_calculation_mode: str | None = None
    qat_spec: TQTSpec | LSQSpec | None = None
    mx_element_dtype: Dtype | None = None
    zero_point_type: ZeroPointType = ZeroPointType.int32
    is_scale_quant: bool = False
    enable_buffer_reuse: bool = False
    max_input_numel: int = _DEFAULT_NUMEL

    def __post_init__(self) -> None:
        check_member(self.dtype, Dtype, "QTensorConfig.dtype")
        check_member(self.zero_point_type, ZeroPointType, "QTensorConfig.zero_point_type")
        for name, reason in _UNUSED.items():
            if getattr(self, name):
                raise RecipeError(f"QTensorConfig.{name} must be left out, got {getattr(self, name)!r}: {reason}")
        if self.max_input_numel != _DEFAULT_NUMEL:
            raise RecipeError(
                f"QTensorConfig.max_input_numel must be left out, got {self.max_input_numel!r}: there is no limit"
            )
        if self.is_dynamic:
            raise RecipeError(
                "QTensorConfig.is_dynamic must be False: NPUs have no scales at run time; for CPUs use quantry.onnx, "
                "which quantizes dynamically"
            )
        if DATA_TYPES[self.dtype].is_integer:
            self._check_integer()

    def _check_integer(self) -> None:
        missing = [name for name in _MANDATORY if getattr(self, name) is None]
        if missing:
            examples = ", ".join(f"{name}={self._example(name)}" for name in missing)
            raise RecipeError(
                f"QTensorConfig of {self.dtype.name} must say how its grid is found, got no value for {len(missing)} "
                f"of its fields; give for example {examples}"
            )
        check_member(self.qscheme, QSchemeType, "QTensorConfig.qscheme")
        check_member(self.round_method, RoundType, "QTensorConfig.round_method")
        check_member(self.scale_type, ScaleType, "QTensorConfig.scale_type")
        self._check_observer()
        if not isinstance(self.symmetric, bool):
            raise RecipeError(f"QTensorConfig.symmetric must be True or False, got {self.symmetric!r}")
        if self.qscheme == QSchemeType.per_channel and not isinstance(self.ch_axis, int):
            raise RecipeError(f"QTensorConfig.ch_axis must be an axis with per_channel, got {self.ch_axis!r}")
        if self.qscheme == QSchemeType.per_tensor and self.ch_axis is not None:
            raise RecipeError(f"QTensorConfig.ch_axis must be left out with per_tensor, got {self.ch_axis!r}")

    def _example(self, name: str) -> str:
        """Return a value for a missing field that goes with those given."""
        if name == "observer_cls" and self.qscheme == QSchemeType.per_channel:
            return "PerChannelMinMaxObserver"
        if name == "qscheme" and getattr(self.observer_cls, "scheme", None) == QSchemeType.per_channel:
            return "QSchemeType.per_channel"
        return _MANDATORY[name]

    def _check_observer(self) -> None:
        observer: Any = self.observer_cls
        if not (isinstance(observer, type) and issubclass(observer, ObserverBase)):
            raise RecipeError(
                f"QTensorConfig.observer_cls must be an observer of quantry.torch, got {observer!r}, such as "
                "PerTensorPowOf2MinMSEObserver"
            )
        if observer.refusal:
            raise RecipeError(f"QTensorConfig.observer_cls cannot be {observer.__name__}: {observer.refusal}")
        if observer.scheme is not None and observer.scheme != self.qscheme:
            assert self.qscheme is not None
            raise RecipeError(
                f"QTensorConfig.observer_cls must fit the qscheme {self.qscheme.name}, got {observer.__name__}, which "
                f"is for {observer.scheme.name}"
            )
        if self.qat_spec is not None and not isinstance(self.qat_spec, TQTSpec | LSQSpec):
            raise RecipeError(f"QTensorConfig.qat_spec must be TQTSpec(), LSQSpec() or None, got {self.qat_spec!r}")

    @property
    def learned(self) -> str:
        """How training learns the scale: "tqt", "lsq" or empty."""
        if self.qat_spec is not None:
            return "tqt" if isinstance(self.qat_spec, TQTSpec) else "lsq"
        return self.observer_cls.learned if self.observer_cls is not None else ""

    @property
    def method(self) -> Method | None:
        """The calibration method; None for types without a scale."""
        return self.observer_cls.method if self.observer_cls is not None and self.is_integer else None

    @property
    def is_integer(self) -> bool:
        """Whether the type has a scale."""
        return DATA_TYPES[self.dtype].is_integer

    def tensor_spec(self) -> TensorSpec:
        """Return the same in quantry's own words."""
        dtype = DATA_TYPES[self.dtype]
        if not dtype.is_integer:
            return TensorSpec(dtype)
        assert self.observer_cls is not None
        power_of_two = self.observer_cls.power_of_two or self.scale_type == ScaleType.pof2 or self.learned == "tqt"
        granularity: Granularity = PerTensor()
        if self.qscheme == QSchemeType.per_channel:
            granularity = PerChannel(self.ch_axis)
        scale = PowerOfTwoScale() if power_of_two else FloatScale()
        return TensorSpec(dtype, bool(self.symmetric), granularity, scale)

    @property
    def is_accumulator(self) -> bool:
        """Whether it is the int32 of a bias on the accumulator's grid."""
        return DATA_TYPES[self.dtype] == DataType.INT32


QuantizationSpec = QTensorConfig
"""The older name of `QTensorConfig`."""
