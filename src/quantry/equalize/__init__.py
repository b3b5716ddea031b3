"""Stage 2: change weights so that they quantize better, without changing what the model computes."""

from quantry.equalize.channel_groups import group_channels
from quantry.equalize.cross_layer import equalize
from quantry.equalize.fit_powers import fit_powers
from quantry.equalize.joint import equalize_jointly, joint_needs
from quantry.equalize.rotate import rotate
from quantry.equalize.smooth import smooth, smooth_needs
from quantry.equalize.types import WeightActivationTypes

__all__ = [
    "WeightActivationTypes",
    "equalize",
    "equalize_jointly",
    "fit_powers",
    "group_channels",
    "joint_needs",
    "rotate",
    "smooth",
    "smooth_needs",
]
