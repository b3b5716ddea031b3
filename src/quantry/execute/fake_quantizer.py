"""The modules that quantize tensors in a torch graph, which users train and evaluate and tuning steps train.

One `FakeQuantizer` serves all tensors that share a scale. Its state is the scale and the zero point. It never changes
these on its own: observers and learned scales must be switched on.

This module imports torch, so it is imported inside functions only.
"""

from typing import Any

import torch
from torch import Tensor, nn

from quantry.errors import ModelError, RecipeError
from quantry.numerics.affine import scale_and_zero_point
from quantry.numerics.grid import Grid
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import (
    Gradient,
    derived_bias_scale,
    fake_quantize,
    fake_quantize_bias,
    fake_quantize_float8,
    round_to_float,
)
from quantry.recipe import DataType, PowerOfTwoScale, TensorSpec

_AVERAGE = 0.01
"""Weight of a new batch in the observed range of an activation; torch's own moving-average observer uses the same."""


class FakeQuantizer(nn.Module):  # type: ignore[misc]
    """Quantizes and dequantizes a tensor as the exported model will.

    Attributes:
        scale: float32, one number, one per index along `axis`, or one per group. A parameter if LSQ learns it. TQT
            replaces it with ``log2_scale``.
        zero_point: int32 of the same shape.
        gradient: What gets a gradient in addition to the values.
        enabled: Whether values are quantized at all.
        observing: Whether the scale follows the range of the values seen in training.
        observe_once: Whether observing stops after the first values.
    """

    observed: Tensor | None

    def __init__(self, params: TensorParams, spec: TensorSpec, *, constant: bool) -> None:
        super().__init__()
        self.dtype, self.axis, self.group = params.dtype, params.axis, params.group
        self.limits = (params.lowest, params.highest)
        self.spec = spec
        self.constant = constant
        self.gradient = Gradient.STRAIGHT_THROUGH
        self.enabled, self.observing, self.observe_once = True, False, False
        self.register_buffer("scale", torch.tensor(params.scale))
        self.register_buffer("zero_point", torch.tensor(params.zero_point, dtype=torch.int32))
        self.register_buffer("observed", None)

    def forward(self, values: Tensor) -> Tensor:
        """Return the quantized and dequantized values in the type of the input."""
        if self.observing and self.training:
            self._observe(values.detach())
            if self.observe_once:
                self.observing = self.observe_once = False
        if not self.enabled:
            return values
        is_log2 = self.gradient is Gradient.TQT
        scale, zero_point, axis = self.log2_scale if is_log2 else self.scale, self.zero_point, self.axis
        if self.dtype.is_float8:
            return fake_quantize_float8(values, scale, self.dtype, axis, log2=is_log2)
        if self.group is not None:
            index = torch.arange(values.shape[axis], device=values.device) // self.group
            scale, zero_point, axis = scale.index_select(axis, index), zero_point.index_select(axis, index), None
        gradient = Gradient.LOG2 if is_log2 and not self.is_power_of_two else self.gradient
        return fake_quantize(values, scale, zero_point, self.limits, axis, gradient)

    @property
    def is_power_of_two(self) -> bool:
        """Whether the scale must be a power of two."""
        return isinstance(self.spec.scale, PowerOfTwoScale)

    @property
    def _log_threshold(self) -> Tensor:
        """The learned logarithm, under the name by which AMD's training scripts collect it for their optimizer."""
        return self.log2_scale

    def current_scale(self) -> Tensor:
        """Return the scale, float32, also while its logarithm is learned."""
        if self.gradient is not Gradient.TQT:
            return self.scale
        return torch.exp2(torch.round(self.log2_scale) if self.is_power_of_two else self.log2_scale)

    def params(self) -> TensorParams:
        """Return scale, zero point and type as the emitters take them.

        Raises:
            ModelError: Training has made the scale negative.
        """
        scale = self.current_scale().detach().cpu().numpy()
        if not (scale > 0).all():
            raise ModelError(
                f"a learned scale must stay positive, got {float(scale.min())} in {self}; give scales a lower learning "
                "rate, or learn their logarithm with learn_scales(model, 'tqt')"
            )
        return TensorParams(
            self.dtype,
            scale,
            self.zero_point.cpu().numpy(),
            self.axis,
            self.limits if self._is_reduced else None,
            self.group,
        )

    @property
    def _is_reduced(self) -> bool:
        return self.limits != (self.dtype.lowest, self.dtype.highest)

    def learn(self, gradient: Gradient) -> list[nn.Parameter]:
        """Make the scale trainable, or fix it again.

        Args:
            gradient: `LSQ` or `TQT`; `STRAIGHT_THROUGH` fixes the scale.

        Returns:
            The parameters to give to an optimizer; empty for a fixed scale.

        Raises:
            RecipeError: LSQ was requested for a power-of-two scale.
        """
        if gradient is Gradient.LSQ and self.is_power_of_two:
            raise RecipeError(
                "a power-of-two scale must be learned by TQT, which trains its logarithm, got LSQ; in "
                "FakeQuantizer.learn"
            )
        scale = self.current_scale().detach().clone()
        for name in ("scale", "log2_scale"):
            if hasattr(self, name):
                delattr(self, name)
        self.gradient = gradient
        if gradient is Gradient.TQT:
            self.log2_scale = nn.Parameter(torch.log2(scale.double()).float())
            return [self.log2_scale]
        if gradient is Gradient.LSQ:
            self.scale = nn.Parameter(scale)
            return [self.scale]
        self.register_buffer("scale", scale)
        return []

    def _observe(self, values: Tensor) -> None:
        rows = values.float().movedim(self.axis, 0).flatten(1) if self.axis is not None else values.float().flatten()
        now = torch.stack([rows.amin(-1), rows.amax(-1)])
        # All of a weight is seen at every step, so its range is exact. Activations are averaged over batches.
        if self.observed is not None and not self.constant:
            now = self.observed + _AVERAGE * (now - self.observed)
        self.observed = now
        grid = Grid.of(self.spec, reduced=self._is_reduced)
        scale, zero_point = scale_and_zero_point(now[0].double(), now[1].double(), grid, torch)
        with torch.no_grad():
            self.zero_point.copy_(zero_point.int())
            if self.gradient is Gradient.TQT:
                self.log2_scale.copy_(torch.log2(scale.float()))
            else:
                self.scale.copy_(scale.float())

    def get_extra_state(self) -> Tensor:
        """Return the switches, which are part of a checkpoint like the numbers.

        They are a tensor, because averages of weights read ``dtype`` of everything in a state.
        """
        gradient = list(Gradient).index(self.gradient)
        return torch.tensor([gradient, self.enabled, self.observing, self.observe_once], dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the switches."""
        self.enabled, self.observing, self.observe_once = map(bool, state.tolist()[1:])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # The keys depend on how the scale is learned, so restore that before torch compares them.
        extra = state_dict.get(f"{prefix}_extra_state")
        if extra is not None and list(Gradient)[int(extra[0])] is not self.gradient:
            self.learn(list(Gradient)[int(extra[0])])
        # A checkpoint from before the first observation has no range, and one from after it has.
        observed = state_dict.get(f"{prefix}observed")
        self.observed = None if observed is None else observed.clone()
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        """Return type, granularity and switches."""
        axis = "" if self.axis is None else f", axis={self.axis}"
        return f"{self.dtype.value}{axis}, {self.gradient.value}{'' if self.enabled else ', off'}"


class FloatCast(nn.Module):  # type: ignore[misc]
    """Rounds values to float16 or bfloat16 and back.

    Attributes:
        dtype: The narrow type.
        enabled: Whether values are rounded at all.
    """

    def __init__(self, dtype: DataType) -> None:
        super().__init__()
        self.dtype = dtype
        self.enabled = True

    def forward(self, values: Tensor) -> Tensor:
        """Return the rounded values in the type of the input."""
        return round_to_float(values, self.dtype) if self.enabled else values


class DerivedBias(nn.Module):  # type: ignore[misc]
    """Quantizes a bias to int32 with scale = input scale x weight scale."""

    def __init__(self, source: FakeQuantizer, weight: FakeQuantizer) -> None:
        super().__init__()
        # In a tuple, so that torch does not register them a second time and list their state twice.
        self._sources = (source, weight)

    def forward(self, bias: Tensor) -> Tensor:
        """Return the quantized and dequantized bias."""
        source, weight = self._sources
        if not weight.enabled:
            return bias
        scale = derived_bias_scale(source.current_scale(), weight.current_scale())
        return fake_quantize_bias(bias, scale, (DataType.INT32.lowest, DataType.INT32.highest))
