"""Stage 2: change weights so that they quantize better and the model computes what it did."""

from quantry.equalize.smooth import smooth, smooth_needs
from quantry.equalize.stage import equalize

__all__ = ["equalize", "smooth", "smooth_needs"]
