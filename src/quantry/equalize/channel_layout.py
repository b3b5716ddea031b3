"""One view of the weights of every linear operator: groups x outputs x inputs x kernel."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ChannelLayout:
    """Where a weight keeps its output and its input channels.

    Conv weights are ``(outputs, inputs/groups, ...)``. ConvTranspose weights are ``(inputs, outputs/groups, ...)``, and
    those of MatMul, and of Gemm unless it transposes, ``(inputs, outputs)``: the input comes first.

    Attributes:
        groups: Groups of channels that do not see each other.
        outputs: Output channels of all groups.
        inputs: Input channels of all groups.
        input_first: Whether the first axis counts inputs.
    """

    groups: int
    outputs: int
    inputs: int
    input_first: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads the input channel of the same number and no other."""
        return self.groups == self.inputs == self.outputs

    def view(self, weight: np.ndarray) -> np.ndarray:
        """Return a contiguous weight as ``(groups, outputs/groups, inputs/groups, kernel)``, sharing its memory."""
        outputs, inputs = self.outputs // self.groups, self.inputs // self.groups
        if self.input_first:
            return weight.reshape(self.groups, inputs, outputs, -1).swapaxes(1, 2)
        return weight.reshape(self.groups, outputs, inputs, -1)

    def scaled(self, weight: np.ndarray, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Return the weight times one factor for each output and each input channel, in float64 and rounded once.

        Args:
            weight: In the operator's own shape.
            outputs: (outputs,) factors.
            inputs: (inputs,) factors.
        """
        result = np.array(weight, dtype=np.float64, order="C")
        channels = self.view(result)
        channels *= outputs.reshape(self.groups, -1, 1, 1)
        channels *= inputs.reshape(self.groups, 1, -1, 1)
        return result.astype(weight.dtype)

    def taken(self, weight: np.ndarray, outputs: np.ndarray | None, inputs: np.ndarray | None) -> np.ndarray:
        """Return the weight with its channels in another order, which may name some twice; None keeps them.

        Args:
            weight: In the operator's own shape; of one group, or depthwise, where ``outputs`` names the groups.
            outputs: Old numbers of the new output channels.
            inputs: Old numbers of the new input channels; None for a depthwise weight.
        """
        if self.groups > 1:
            return np.ascontiguousarray(weight if outputs is None else weight[outputs])
        first, second = (inputs, outputs) if self.input_first else (outputs, inputs)
        rows = weight if first is None else weight[first]
        return np.ascontiguousarray(rows if second is None else rows[:, second])


def scaled_bias(bias: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return a bias times one factor for each output channel, which lie on its last axis or are all given the same."""
    product: np.ndarray = _spread(bias, len(outputs)) * outputs
    return product.astype(bias.dtype)


def shifted_bias(bias: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return a bias plus one constant for each output channel."""
    total: np.ndarray = _spread(bias, len(outputs)) + outputs
    return total.astype(bias.dtype)


def taken_bias(bias: np.ndarray, order: np.ndarray, outputs: int) -> np.ndarray:
    """Return a bias of ``outputs`` channels with its channels in another order, which may name some twice."""
    return np.ascontiguousarray(_spread(bias, outputs)[..., order]).astype(bias.dtype)


def bias_magnitude(bias: np.ndarray | None, outputs: int) -> np.ndarray:
    """Return the largest magnitude of a bias in each of ``outputs`` channels, (outputs,) float64; 0 without a bias."""
    if bias is None:
        return np.zeros(outputs)
    peak: np.ndarray = np.abs(_spread(bias, outputs)).reshape(-1, outputs).max(axis=0)
    return peak


def _spread(bias: np.ndarray, outputs: int) -> np.ndarray:
    wide = np.atleast_1d(bias).astype(np.float64)
    return np.broadcast_to(wide, (*wide.shape[:-1], outputs))
