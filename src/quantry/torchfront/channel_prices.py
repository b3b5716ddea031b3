"""What the channels of tensors cost when they are enlarged against the one step that serves them all.

A channel that is enlarged by 2^j is rounded with a step 2^j times as fine and is cut off 2^j times as early. In terms
of the values as they were, it is the step that changes, so that nothing is run again when channels are scaled.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.equalize.channel_layout import ChannelLayout
from quantry.numerics.rounding import round_and_clip
from quantry.torchfront.candidate_errors import Candidates, candidate_errors
from quantry.torchfront.fake_quantizer import FakeQuantizer

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_SPAN = 6
_COARSER, _FINER = 4.0, 16.0
"""By what the cost grows with each power of two beyond those that were tried: by steps, and by what is cut off."""


@dataclass(eq=False)
class ActivationPrices:
    """What an activation costs, channel by channel.

    Attributes:
        quantizer: Its quantizer.
        costs: What was seen, [1 + 2 * span, channels], at powers of two from -span to span.
        enlarged: By which powers of two channels are enlarged, [channels].
        coarser: By which power of two the step is.
    """

    quantizer: FakeQuantizer
    costs: Floats = field(default_factory=lambda: np.zeros((1 + 2 * _SPAN, 0)))
    enlarged: Whole = field(default_factory=lambda: np.zeros(0, np.int64))
    coarser: int = 0

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add what errors of some values cost; channels are the second axis."""
        steps = Candidates.of(self.quantizer, 2.0 ** -np.arange(-_SPAN, _SPAN + 1))
        seen = candidate_errors(values, gradient, steps, 1 if values.dim() > 1 else None).numpy()
        if self.costs.shape[1] not in (0, seen.shape[1]):  # tensors of several widths share the step
            self.costs, seen = (part.sum(1, keepdims=True) for part in (self.costs, seen))
        self.costs = self.costs + seen if self.costs.size else seen
        self.enlarged = np.zeros(self.costs.shape[1], np.int64)

    @property
    def channels(self) -> int:
        """Number of channels; 1 where they differ, 0 where the results do not depend on the tensor."""
        return int(self.costs.shape[1])

    def at(self, power: int) -> Floats:
        """Return the cost of each channel when all are enlarged by a power of two, [channels]."""
        wanted = self.enlarged - self.coarser + power
        found = self.costs[np.clip(wanted + _SPAN, 0, 2 * _SPAN), np.arange(self.channels)]
        beyond = _FINER ** np.maximum(wanted - _SPAN, 0) * _COARSER ** np.maximum(-_SPAN - wanted, 0)
        return np.asarray(found * beyond)

    def total(self, power: int) -> float:
        """Return the cost of all channels when all are enlarged by a power of two."""
        return float(self.at(power).sum())


@dataclass(eq=False)
class ConstantPrices:
    """What a weight or a bias costs.

    Attributes:
        quantizer: Its quantizer.
        curvature: What a squared error of each of its numbers costs, in its own shape.
        values: Its numbers, [groups, outputs / groups, inputs / groups, kernel].
        outputs: By which powers of two output channels are enlarged, [outputs].
        inputs: The same of input channels, [inputs].
        coarser: By which power of two the step is.
        share: How much of the cost is left after rounding is tuned.
        placed: Whether the numbers are known.
    """

    quantizer: FakeQuantizer
    share: float = 1.0
    curvature: Floats = field(default_factory=lambda: np.zeros(()))
    values: Floats = field(default_factory=lambda: np.zeros((1, 1, 1, 1)))
    outputs: Whole = field(default_factory=lambda: np.zeros(1, np.int64))
    inputs: Whole = field(default_factory=lambda: np.zeros(1, np.int64))
    coarser: int = 0
    placed: bool = False

    def add(self, _: Tensor, gradient: Tensor) -> None:
        """Add what is seen of a batch."""
        self.curvature = self.curvature + gradient.square().double().cpu().numpy()

    def place(self, values: npt.NDArray[np.float32], layout: ChannelLayout) -> None:
        """Say what the numbers are and where their channels; the first word counts."""
        if self.placed:
            return
        self.placed = True
        self.values = layout.view(np.array(values, np.float64, order="C"))
        self.curvature = layout.view(np.ascontiguousarray(np.broadcast_to(self.curvature, values.shape)))
        self.outputs, self.inputs = np.zeros(layout.outputs, np.int64), np.zeros(layout.inputs, np.int64)

    def at(self, power: int, *, of_inputs: bool = False) -> Floats:
        """Return the cost of each output (or input) channel when all are enlarged by a power of two, [channels]."""
        axes = (1, 3) if of_inputs else (2, 3)
        return np.asarray(self._errors(power).sum(axes).reshape(-1))

    def total(self, power: int) -> float:
        """Return the cost of all numbers when all are enlarged by a power of two."""
        return float(self._errors(power).sum())

    def _errors(self, power: int) -> Floats:
        groups = self.values.shape[0]
        enlarged = self.outputs.reshape(groups, -1, 1, 1) + self.inputs.reshape(groups, 1, -1, 1)
        step = float(self.quantizer.scale) * np.exp2(self.coarser - power - enlarged)
        low, high = (limit - int(self.quantizer.zero_point) for limit in self.quantizer.limits)
        error = round_and_clip(self.values / step, low, high) * step - self.values
        return np.asarray(self.share * self.curvature * error * error)


def is_shared(part: FakeQuantizer) -> bool:
    """Whether one step serves all channels of a tensor."""
    return part.axis is None and torch.numel(part.scale) == 1
