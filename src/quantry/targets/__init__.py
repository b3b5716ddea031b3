"""What deployment targets want of a quantized model, and whether a model keeps to it."""

from quantry.targets.backends import BACKENDS, Backend, PlacedNode, Runner
from quantry.targets.check import check_model
from quantry.targets.registry import TARGETS, backend_of, default_target, find_target, target_of_model
from quantry.targets.rules import Rule, Violation
from quantry.targets.target import Target

__all__ = [
    "BACKENDS",
    "TARGETS",
    "Backend",
    "PlacedNode",
    "Rule",
    "Runner",
    "Target",
    "Violation",
    "backend_of",
    "check_model",
    "default_target",
    "find_target",
    "target_of_model",
]
