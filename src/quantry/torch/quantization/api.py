"""``ModelQuantizer`` under its older path."""

from quantry.torch.quantizer import ModelQuantizer

__all__ = ["ModelQuantizer"]
