"""Stage 4: operator rules decide which tensor gets which type, which share, and what stays float and why."""

from quantry.plan.after_layers import final_pools
from quantry.plan.bodies import InsidePlan, planned_bodies, recipe_inside, recipe_outside
from quantry.plan.follow import FollowedNames
from quantry.plan.overview import NodeOverview, overview
from quantry.plan.planner import kept_by_choice, names_are_found, plan

__all__ = [
    "FollowedNames",
    "InsidePlan",
    "NodeOverview",
    "final_pools",
    "kept_by_choice",
    "names_are_found",
    "overview",
    "plan",
    "planned_bodies",
    "recipe_inside",
    "recipe_outside",
]
