"""Short forms of `QTensorConfig` with the names of Quark for PyTorch, such as ``Int8PerTensorSpec``.

They are only names for a data type and a number of scales, so they are made from a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.checked import KnownArguments
from quantry.torch.config import QTensorConfig
from quantry.torch.enums import (
    Dtype,
    ObserverBase,
    PerChannelMinMaxObserver,
    PerGroupMinMaxObserver,
    PerTensorHistogramObserver,
    PerTensorMinMaxObserver,
    PerTensorMSEObserver,
    PerTensorPercentileObserver,
    PlaceholderObserver,
    QSchemeType,
    RoundType,
    ScaleType,
)

_TENSOR_OBSERVERS: Mapping[str, type[ObserverBase]] = {
    "min_max": PerTensorMinMaxObserver,
    "histogram": PerTensorHistogramObserver,
    "percentile": PerTensorPercentileObserver,
    "MSE": PerTensorMSEObserver,
}
_Member = TypeVar("_Member", bound=Enum)


@dataclass(frozen=True)
class DataTypeSpec(KnownArguments):
    """A data type with its number of scales; the subclasses name both.

    Attributes:
        observer_method: "min_max", "histogram", "percentile" or "MSE"; only for one scale per tensor.
        symmetric: Whether the zero point is fixed; None takes AMD's default for the type.
        scale_type: "float" or "pof2".
        round_method: "half_even".
        ch_axis: Channel axis of more than one scale.
        is_dynamic: Whether scales are computed at run time; must not be True.
        group_size: Values that share a scale.
    """

    dtype: ClassVar[Dtype] = Dtype.int8
    scheme: ClassVar[QSchemeType | None] = QSchemeType.per_tensor
    default_symmetric: ClassVar[bool] = True

    observer_method: str | None = None
    symmetric: bool | None = None
    scale_type: str | None = "float"
    round_method: str | None = "half_even"
    is_dynamic: bool | None = False
    ch_axis: int | None = None
    group_size: int | None = None

    def to_quantization_spec(self) -> QTensorConfig:
        """Return the full form.

        Raises:
            RecipeError: The exported model cannot have such a tensor; the message says why.
        """
        return QTensorConfig(
            dtype=self.dtype,
            observer_cls=self._observer(),
            is_dynamic=self.is_dynamic,
            qscheme=self.scheme,
            ch_axis=self.ch_axis,
            group_size=self.group_size,
            symmetric=self.default_symmetric if self.symmetric is None else self.symmetric,
            round_method=self._member("round_method", RoundType),
            scale_type=self._member("scale_type", ScaleType),
        )

    def _observer(self) -> type[ObserverBase]:
        if self.scheme is QSchemeType.per_tensor:
            method = self.observer_method or "min_max"
            if method not in _TENSOR_OBSERVERS:
                raise RecipeError(
                    f"{type(self).__name__}.observer_method must be one of {', '.join(_TENSOR_OBSERVERS)}, got "
                    f"{method!r}{nearest_spelling(method, _TENSOR_OBSERVERS)}"
                )
            return _TENSOR_OBSERVERS[method]
        if self.observer_method is not None:
            raise RecipeError(
                f"{type(self).__name__}.observer_method must be omitted, got {self.observer_method!r}: it is for one "
                "scale per tensor"
            )
        if self.scheme is None:
            return PlaceholderObserver
        return PerChannelMinMaxObserver if self.scheme is QSchemeType.per_channel else PerGroupMinMaxObserver

    def _member(self, name: str, kind: type[_Member]) -> _Member | None:
        choice = getattr(self, name)
        if choice is None:
            return None
        if choice not in kind.__members__:
            raise RecipeError(
                f"{type(self).__name__}.{name} must be one of {', '.join(kind.__members__)}, got {choice!r}"
            )
        return kind[choice]


_TYPES = {
    "Int8": Dtype.int8,
    "Uint8": Dtype.uint8,
    "Int4": Dtype.int4,
    "Uint4": Dtype.uint4,
    "FP8E4M3": Dtype.fp8_e4m3,
    "FP8E5M2": Dtype.fp8_e5m2,
}
_SCHEMES = {
    "PerTensor": QSchemeType.per_tensor,
    "PerChannel": QSchemeType.per_channel,
    "PerGroup": QSchemeType.per_group,
}


_ASYMMETRIC = (
    *("Uint4PerTensorSpec", "Uint4PerChannelSpec", "Uint4PerGroupSpec"),
    *("Uint8PerTensorSpec", "Uint8PerGroupSpec", "Int8PerChannelSpec"),
)
"""Specifications that have a zero point by default in AMD Quark 0.13; not Uint8PerChannelSpec."""


def _named(name: str, dtype: Dtype, scheme: QSchemeType | None) -> type[DataTypeSpec]:
    doc = f"{dtype.value}, {'without a scale' if scheme is None else scheme.value.replace('_', ' ')}."
    attributes = {"dtype": dtype, "scheme": scheme, "default_symmetric": name not in _ASYMMETRIC}
    spec = type(name, (DataTypeSpec,), {"__doc__": doc, "__module__": __name__, **attributes})
    assert issubclass(spec, DataTypeSpec)
    return spec


SPECS: Mapping[str, type[DataTypeSpec]] = {
    name: _named(name, dtype, scheme)
    for name, dtype, scheme in (
        *(
            (f"{kind}{count}Spec", dtype, scheme)
            for kind, dtype in _TYPES.items()
            for count, scheme in _SCHEMES.items()
        ),
        ("Float16Spec", Dtype.float16, None),
        ("Bfloat16Spec", Dtype.bfloat16, None),
    )
}
"""The short forms by name."""
