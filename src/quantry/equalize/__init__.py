"""Stage 2: change weights so that they quantize better and the model computes what it did."""

from quantry.equalize.absorb import absorb, absorb_needs
from quantry.equalize.group import group_channels
from quantry.equalize.smooth import smooth, smooth_needs
from quantry.equalize.split_outliers import split_outliers
from quantry.equalize.stage import equalize

__all__ = ["absorb", "absorb_needs", "equalize", "group_channels", "smooth", "smooth_needs", "split_outliers"]
