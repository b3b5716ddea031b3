"""What deployment targets want of a quantized model, and whether a model keeps to it."""

from quantry.targets.check import check_model
from quantry.targets.registry import TARGETS, default_target, find_target, target_of_model
from quantry.targets.rules import Rule, Violation
from quantry.targets.target import Target

__all__ = ["TARGETS", "Rule", "Target", "Violation", "check_model", "default_target", "find_target", "target_of_model"]
