"""What deployment targets want of a quantized model, and whether a model keeps to it."""

from quantry.targets.arithmetic import computed_for, integer_activations, is_computed_here, on_target, simulated_for
from quantry.targets.backends import BACKENDS, Backend, PlacedNode, Runner
from quantry.targets.check import check_model
from quantry.targets.placement import Placement, place
from quantry.targets.registry import TARGETS, backend_of, default_target, find_target, target_of_model
from quantry.targets.rules import CheckedModel, TargetRule, Violation
from quantry.targets.rules.accumulator import Accumulator, prove_accumulators
from quantry.targets.speed import LEAST_SPEEDUP, measure_on_target, slow_because
from quantry.targets.target import Target

__all__ = [
    "BACKENDS",
    "LEAST_SPEEDUP",
    "TARGETS",
    "Accumulator",
    "Backend",
    "CheckedModel",
    "PlacedNode",
    "Placement",
    "Runner",
    "Target",
    "TargetRule",
    "Violation",
    "backend_of",
    "check_model",
    "computed_for",
    "default_target",
    "find_target",
    "integer_activations",
    "is_computed_here",
    "measure_on_target",
    "on_target",
    "place",
    "prove_accumulators",
    "simulated_for",
    "slow_because",
    "target_of_model",
]
