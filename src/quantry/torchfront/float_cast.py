"""Rounding to a narrow float type while a model trains."""

import torch
from torch import Tensor, nn

from quantry.recipe import DataType

_TYPES = {DataType.FLOAT16: torch.float16, DataType.BFLOAT16: torch.bfloat16}


class FloatCast(nn.Module):  # type: ignore[misc]
    """Rounds values to float16 or bfloat16 and back; the gradient passes through."""

    def __init__(self, dtype: DataType) -> None:
        super().__init__()
        self.dtype = dtype
        self.enabled = True

    def forward(self, values: Tensor) -> Tensor:
        """Return the rounded values in the type they came in."""
        if not self.enabled:
            return values
        return values.to(_TYPES[self.dtype]).to(values.dtype)
