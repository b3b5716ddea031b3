"""Stage 4: operator rules decide which tensor gets which type, which share, and what stays float and why."""

from quantry.plan.draft import FUSING_PRODUCERS
from quantry.plan.kept_by_choice import kept_by_choice, names_are_found
from quantry.plan.overview import NodeOverview, overview
from quantry.plan.planner import plan
from quantry.plan.quant_plan import (
    ActivationPlan,
    BiasPlan,
    Conversion,
    DeclinedNode,
    DerivedBiasPlan,
    FixedRange,
    OwnBiasPlan,
    OwnRange,
    QuantPlan,
    SharedRange,
    WeightPlan,
)

__all__ = [
    "FUSING_PRODUCERS",
    "ActivationPlan",
    "BiasPlan",
    "Conversion",
    "DeclinedNode",
    "DerivedBiasPlan",
    "FixedRange",
    "NodeOverview",
    "OwnBiasPlan",
    "OwnRange",
    "QuantPlan",
    "SharedRange",
    "WeightPlan",
    "kept_by_choice",
    "names_are_found",
    "overview",
    "plan",
]
