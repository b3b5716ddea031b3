"""Names where scripts for Quark for PyTorch look for them."""

from quantry.torch.quantization.api import ModelQuantizer

__all__ = ["ModelQuantizer"]
