"""The kinds of rules that targets are made of."""

from quantry.targets.rules.accumulator import NoOverflow
from quantry.targets.rules.fusion import FasterForms, RedundantFunctions
from quantry.targets.rules.graph import (
    FloatType,
    NoOperators,
    OneType,
    OperatorTypes,
    QuantizedInputs,
    QuantizedResiduals,
    RefusedTypes,
    SecondOperand,
    StaticFormats,
    StaticShapes,
    WrittenAttributes,
)
from quantry.targets.rules.npu import Closed, ShiftLimits
from quantry.targets.rules.numbers import (
    Centred,
    FixedScales,
    Granularity,
    PowersOfTwo,
    SmallestRange,
    Types,
)
from quantry.targets.rules.rule import CheckedModel, TargetRule, Violation

AnyRule = (
    StaticFormats
    | Types
    | Granularity
    | PowersOfTwo
    | Centred
    | Closed
    | ShiftLimits
    | StaticShapes
    | WrittenAttributes
    | NoOperators
    | FloatType
    | SecondOperand
    | OneType
    | OperatorTypes
    | RedundantFunctions
    | FasterForms
    | FixedScales
    | SmallestRange
    | QuantizedInputs
    | QuantizedResiduals
    | NoOverflow
)
"""Every kind of rule, for files."""

__all__ = [
    "AnyRule",
    "Centred",
    "CheckedModel",
    "Closed",
    "FasterForms",
    "FixedScales",
    "FloatType",
    "Granularity",
    "NoOperators",
    "NoOverflow",
    "OneType",
    "OperatorTypes",
    "PowersOfTwo",
    "QuantizedInputs",
    "QuantizedResiduals",
    "RedundantFunctions",
    "RefusedTypes",
    "SecondOperand",
    "ShiftLimits",
    "SmallestRange",
    "StaticFormats",
    "StaticShapes",
    "TargetRule",
    "Types",
    "Violation",
    "WrittenAttributes",
]
