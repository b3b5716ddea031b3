"""Operator rules, one file for each family.

A rule says how the operators of a family are quantized. A new operator that has the facts of a known family needs no
rule: its row in `quantry.facts.operators` is enough. Otherwise write a rule in a file here and name it in `RULES`.
"""

from quantry.plan.rules.activation import ActivationRule, PReluRule, SoftmaxRule
from quantry.plan.rules.annotation import (
    Annotation,
    Declined,
    OperatorRule,
    OutputRange,
    Own,
    SameAs,
    Within,
    input_at,
    is_constant,
    is_float,
)
from quantry.plan.rules.arithmetic import ArithmeticRule, ConcatRule, DivRule, WhereRule
from quantry.plan.rules.convolution import ConvRule, ConvTransposeRule
from quantry.plan.rules.fused import AttentionRule, EmbedLayerNormRule
from quantry.plan.rules.matrix import GemmRule, MatMulRule
from quantry.plan.rules.movement import GatherRule, MovementRule, PadRule, ResizeRule
from quantry.plan.rules.normalization import NormalizationRule
from quantry.plan.rules.pooling import ArgMaxRule, AveragePoolRule, MaxPoolRule
from quantry.plan.rules.precision import WideRangeRule
from quantry.plan.rules.recurrent import ControlFlowRule, RecurrentRule

RULES: tuple[OperatorRule, ...] = (
    ConvRule(),
    ConvTransposeRule(),
    MatMulRule(),
    GemmRule(),
    ArithmeticRule(),
    DivRule(),
    WhereRule(),
    ConcatRule(),
    ActivationRule(),
    PReluRule(),
    SoftmaxRule(),
    MaxPoolRule(),
    AveragePoolRule(),
    ArgMaxRule(),
    MovementRule(),
    GatherRule(),
    PadRule(),
    ResizeRule(),
    NormalizationRule(),
    WideRangeRule(),
    EmbedLayerNormRule(),
    AttentionRule(),
    RecurrentRule(),
    ControlFlowRule(),
)

RULE_OF_OPERATOR: dict[str, OperatorRule] = {operator: rule for rule in RULES for operator in rule.operators}

__all__ = [
    "RULES",
    "RULE_OF_OPERATOR",
    "Annotation",
    "Declined",
    "OperatorRule",
    "OutputRange",
    "Own",
    "SameAs",
    "Within",
    "input_at",
    "is_constant",
    "is_float",
]
