"""Conflicts between options in the names that the facade's users know.

`quantry.recipe.compatibility` says which options go together. The option table says which option sets which field of a
recipe, so the same rule reads ``per_channel must be False`` here and ``plan.weight.granularity must be PerTensor()``
there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from quantry.onnx.enums import (
    CalibrationMethod,
    ExtendedQuantFormat,
    PowerOfTwoMethod,
    QuantFormat,
    QuantGranularity,
    ScaleType,
    VitisQuantFormat,
    type_of,
)
from quantry.onnx.options import FIELDS, ROWS, OptionRow
from quantry.recipe import (
    DataType,
    Dynamic,
    FixNeuron,
    FloatScale,
    LayerTypes,
    MatMulNBits,
    PerChannel,
    PerTensor,
    PlanOptions,
    PowerOfTwoScale,
    Qdq,
    QOperator,
    VitisQdq,
)
from quantry.recipe.compatibility import Conflict, Vocabulary

_LAYER_NAMES = {"activation": "input_tensors", "weight": "weight", "bias": "bias"}
_TENSOR_NAMES = {
    "dtype": "data_type",
    "scale": "scale_type",
    "symmetric": "symmetric",
    "granularity": "quant_granularity",
}
_FORMATS: dict[type, Enum] = {
    Qdq: QuantFormat.QDQ,
    QOperator: QuantFormat.QOperator,
    FixNeuron: VitisQuantFormat.FixNeuron,
    VitisQdq: ExtendedQuantFormat.QDQ,
}
_SWITCHES = {Dynamic: "use_dynamic_quant", MatMulNBits: "UseMatMulNBits"}


@dataclass(frozen=True)
class OptionWords(Vocabulary):
    """The names of a QuantizationConfig, or of a QConfig and its layers.

    Attributes:
        given: The options that the caller set, by name.
        plan: The plan that the options made; it has the names of single layers.
        by_layer: Whether the types come from specifications of layers, as in a QConfig.
        single: Whether the conflict is in an entry of single layers or tensors, which has specifications too.
    """

    given: Mapping[str, Any]
    plan: PlanOptions
    by_layer: bool = False
    single: bool = False

    def message(self, conflict: Conflict) -> str:
        """Return the message."""
        return Vocabulary.message(replace(self, single=bool(conflict.place)), conflict)

    def name(self, field: str) -> str:
        """Return the option that sets a field, as messages spell it."""
        if self._is_spec(field):
            return self._spec_name(field)
        key = self._option(field)
        return key if key in FIELDS else f"extra_options[{key!r}]"

    def place(self, path: str) -> str:
        """Return the layers or tensors that an entry is for."""
        kind, _, tail = path.partition("[")
        if kind == "mix.mixed.targets":
            return "the target of AutoMixprecision"
        entries = self.plan.layers if kind == "plan.layers" else self.plan.tensors
        entry = entries[int(tail.partition("]")[0])]
        names = (*entry.match, *entry.operators) if isinstance(entry, LayerTypes) else entry.match
        return f"{'QLayerConfig' if isinstance(entry, LayerTypes) else 'the type'} of {', '.join(names)}"

    def value(self, field: str, value: Any) -> str:
        """Return a value as the option spells it."""
        if isinstance(value, DataType):
            return str(value) if self._is_spec(field) else str(type_of(value))
        kind = value if isinstance(value, type) else type(value)
        if kind in _FORMATS:
            return str(_FORMATS[kind])
        if self._is_spec(field) and kind in (PerTensor, PerChannel):
            return str(QuantGranularity.Channel if kind is PerChannel else QuantGranularity.Tensor)
        if kind in (PowerOfTwoScale, FloatScale):
            scale = ScaleType.PowerOf2 if kind is PowerOfTwoScale else ScaleType.Float32
            method = PowerOfTwoMethod.MinMSE if kind is PowerOfTwoScale else CalibrationMethod.MinMax
            return str(scale if self._is_spec(field) else method)
        # What is left are switches: NPU limits, dynamic and packed formats, scales for each channel.
        return str(value) if isinstance(value, bool) else str(value is not None and kind is not PerTensor)

    def setting(self, field: str, value: Any) -> str:
        """Return an option with a value."""
        if field == "emit.format":
            kind = value if isinstance(value, type) else type(value)
            return f"{_SWITCHES[kind]}=True" if kind in _SWITCHES else f"quant_format={_FORMATS[kind]}"
        name = self._spec_name(field) if self._is_spec(field) else self._option(field)
        return f"{name}={self.value(field, value)}"

    def allowed(self, conflict: Conflict) -> str:
        """Return the values that are allowed."""
        if self._is_bias_option(conflict.field):
            return "omitted"
        if PowerOfTwoScale() in conflict.allowed and not self._is_spec(conflict.field):
            return "a PowerOfTwoMethod"
        # E5M2 has no name in AMD's and onnxruntime's enumerations.
        values = tuple(value for value in conflict.allowed if value is not DataType.FLOAT8E5M2)
        return super().allowed(replace(conflict, allowed=values))

    def given_value(self, conflict: Conflict) -> str:
        """Return the value that the caller gave, or the default that took its place."""
        if self._is_spec(conflict.field) or self._option(conflict.field) not in self.given:
            return self.value(conflict.field, conflict.given)
        value = self.given[self._option(conflict.field)]
        return str(value) if isinstance(value, Enum) else repr(value)

    def fix(self, conflict: Conflict) -> str:
        """Return how to change the option itself."""
        if self._is_bias_option(conflict.field):
            return f"omit {self._option(conflict.field)}"
        return super().fix(conflict)

    def _is_spec(self, field: str) -> bool:
        specified = self.by_layer or self.single
        return specified and field.startswith(("plan.activation", "plan.weight.", "plan.bias"))

    def _is_bias_option(self, field: str) -> bool:
        return field.startswith("plan.bias") and not self._is_spec(field)

    def _spec_name(self, field: str) -> str:
        _, kind, *tail = field.replace(".spec", "").split(".")
        owner = () if self.single else ("QLayerConfig",)
        return ".".join((*owner, _LAYER_NAMES[kind], *(_TENSOR_NAMES[name] for name in tail)))

    def _option(self, field: str) -> str:
        """Return the option that sets a field: one that the caller gave before others, a field before a key."""
        tables: tuple[Iterable[OptionRow], ...] = (FIELDS.values(), ROWS.values())
        for sets in (OptionRow.sets_exactly, OptionRow.sets_part_of):
            keys = [row.key for rows in tables for row in rows if sets(row, field)]
            if keys:
                key = next((key for key in keys if self.given.get(key)), keys[0])
                return self._key_of(key) if self.by_layer and key in FIELDS else key
        return field

    @staticmethod
    def _key_of(field: str) -> str:
        """Return the key of ``extra_options`` under which a QConfig has a field of QuantizationConfig."""
        return next((row.key for row in ROWS.values() if row.spelling_of == field), field)
