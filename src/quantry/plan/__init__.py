"""Stage 4: operator rules decide which tensor gets which type, which share, and what stays float and why."""

from quantry.plan.after_layers import final_pools
from quantry.plan.follow import FollowedNames
from quantry.plan.overview import NodeOverview, overview
from quantry.plan.planner import kept_by_choice, names_are_found, plan

__all__ = [
    "FollowedNames",
    "NodeOverview",
    "final_pools",
    "kept_by_choice",
    "names_are_found",
    "overview",
    "plan",
]
