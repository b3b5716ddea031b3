"""The module that quantizes one tensor while a model trains.

It is one module for all tensors that share a scale, has no state but scale and zero point, and never changes these by
itself: `observing` and learned scales are asked for.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quantry.errors import ModelError, RecipeError
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import Gradient, fake_quantize, fake_quantize_log2
from quantry.recipe import TensorSpec
from quantry.torchfront.coded_quantizer import coded_fake_quantize, is_coded
from quantry.torchfront.extremes import scale_of
from quantry.torchfront.learned_scale import fake_quantize_power_of_two
from quantry.torchfront.native_quantizer import is_native, native_fake_quantize, native_learned_fake_quantize

_AVERAGE = 0.01


class FakeQuantizer(nn.Module):  # type: ignore[misc]
    """Quantizes and dequantizes a tensor as the exported model will.

    Attributes:
        scale: float32, one number or one for each index along `axis`; a parameter where it is learned by LSQ.
        zero_point: int32 of the same shape.
        gradient: What besides the values learns. TQT keeps the scale as ``log2_scale``.
        enabled: Whether values are quantized at all.
        observing: Whether the scale follows the extremes seen in training; nothing but `start_observers` sets it.
    """

    extremes: Tensor | None

    def __init__(self, params: TensorParams, spec: TensorSpec, *, constant: bool) -> None:
        super().__init__()
        self.dtype, self.axis = params.dtype, params.axis
        self.limits = (params.lowest, params.highest)
        self.spec = spec
        self.constant = constant
        self.gradient = Gradient.STRAIGHT_THROUGH
        self.enabled, self.observing = True, False
        self.register_buffer("scale", torch.tensor(params.scale))
        self.register_buffer("zero_point", torch.tensor(params.zero_point, dtype=torch.int32))
        self.register_buffer("extremes", None)
        self._exact = bool((torch.frexp(self.scale).mantissa == 0.5).all())

    def forward(self, values: Tensor) -> Tensor:
        """Return the values on the grid, in the type they came in."""
        if self.observing and self.training:
            self._observe(values.detach())
        if not self.enabled:
            return values
        if self.gradient is Gradient.STRAIGHT_THROUGH:
            if self.axis is None and is_native(values):
                return native_fake_quantize(values, self.scale, self.zero_point, self.limits)
            # torch.compile joins plain operations with their neighbours, but not torch's own kernel.
            if self._exact and not torch.compiler.is_compiling():
                return self._by_torch(values)
        elif self.axis is None:
            one_pass = _one_pass(values)
            if self.gradient is Gradient.TQT and self._power_of_two:
                one_pass = one_pass or fake_quantize_power_of_two
                return one_pass(values, self.log2_scale, self.zero_point, self.limits)
            if self.gradient is Gradient.LSQ and one_pass is not None:
                weight = 1.0 / math.sqrt(max(1, values.numel()) * max(1, self.limits[1]))  # as the plain way
                return one_pass(values, self.scale, self.zero_point, self.limits, weight)
        wide = values.float()
        if self.gradient is Gradient.TQT:
            done = fake_quantize_log2(
                wide, self.log2_scale, self.zero_point, self.limits, self.axis, power_of_two=self._power_of_two
            )
        else:
            done = fake_quantize(wide, self.scale, self.zero_point, self.limits, self.axis, self.gradient)
        return done.to(values.dtype)

    def current_scale(self) -> Tensor:
        """Return the scale in use, float32, whatever it is kept as."""
        if self.gradient is not Gradient.TQT:
            return self.scale
        exponent = torch.round(self.log2_scale) if self._power_of_two else self.log2_scale
        return torch.exp2(exponent)

    def params(self) -> TensorParams:
        """Return what the emitters take.

        Raises:
            ModelError: Training has made the scale negative.
        """
        scale = self.current_scale().detach().cpu().numpy()
        if not (scale > 0).all():
            raise ModelError(
                f"a learned scale must stay positive, got {float(scale.min())} in {self}; give scales a lower learning "
                "rate, or learn their logarithm with learn_scales(model, 'tqt')"
            )
        limits = None if self.limits == (self.dtype.lowest, self.dtype.highest) else self.limits
        return TensorParams(self.dtype, scale, self.zero_point.cpu().numpy(), self.axis, limits)

    def learn(self, gradient: Gradient) -> list[nn.Parameter]:
        """Let the scale be trained, or fix it again where it is.

        Args:
            gradient: How; ``STRAIGHT_THROUGH`` fixes it.

        Returns:
            The parameters that an optimizer must take in; empty where the scale is fixed.

        Raises:
            RecipeError: LSQ was asked for a power-of-two scale.
        """
        if gradient is Gradient.LSQ and self._power_of_two:
            raise RecipeError(
                "a power-of-two scale is learned by TQT, which trains its logarithm, got LSQ; in FakeQuantizer.learn"
            )
        scale = self.current_scale().detach().clone()
        for name in ("scale", "log2_scale"):
            if hasattr(self, name):
                delattr(self, name)
        self.gradient = gradient
        if gradient is Gradient.TQT:
            self.log2_scale = nn.Parameter(torch.log2(scale))
            return [self.log2_scale]
        if gradient is Gradient.LSQ:
            self.scale = nn.Parameter(scale)
            return [self.scale]
        self.register_buffer("scale", scale)
        self._exact = bool((torch.frexp(scale).mantissa == 0.5).all())
        return []

    @property
    def _power_of_two(self) -> bool:
        return type(self.spec.scale).__name__ == "PowerOfTwoScale"

    def _by_torch(self, values: Tensor) -> Tensor:
        # torch's own kernel multiplies by the reciprocal, which is the same number for powers of two alone. It is one
        # pass and keeps one byte of each element for the gradient; packing eight into one takes as long as it all.
        low, high = self.limits
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(values, self.scale, self.zero_point, low, high)
        return torch.fake_quantize_per_channel_affine(values, self.scale, self.zero_point, self.axis, low, high)

    def _observe(self, values: Tensor) -> None:
        seen = values.float().movedim(self.axis, 0).flatten(1) if self.axis is not None else values.float().flatten()
        now = torch.stack([seen.amin(-1), seen.amax(-1)])
        if self.extremes is not None and not self.constant:
            now = self.extremes + _AVERAGE * (now - self.extremes)
        self.extremes = now
        scale, zero_point = scale_of(now, self.spec, self.limits)
        with torch.no_grad():
            self.zero_point.copy_(zero_point)
            (self.log2_scale if self.gradient is Gradient.TQT else self.scale).copy_(
                torch.log2(scale) if self.gradient is Gradient.TQT else scale
            )

    def get_extra_state(self) -> dict[str, Any]:
        """Return the switches, which belong to a checkpoint as much as the numbers."""
        return {"gradient": self.gradient.value, "enabled": self.enabled, "observing": self.observing}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the switches."""
        self.enabled, self.observing = bool(state["enabled"]), bool(state["observing"])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # The keys depend on how the scale is learned, so that is restored before torch compares them.
        extra = state_dict.get(f"{prefix}_extra_state")
        if extra is not None and Gradient(extra["gradient"]) is not self.gradient:
            self.learn(Gradient(extra["gradient"]))
        if f"{prefix}extremes" in state_dict:
            self.extremes = state_dict[f"{prefix}extremes"].clone()
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if self.gradient is Gradient.STRAIGHT_THROUGH:
            self._exact = bool((torch.frexp(self.scale.detach().cpu()).mantissa == 0.5).all())

    def extra_repr(self) -> str:
        """Return type, granularity and switches."""
        where = "" if self.axis is None else f", axis={self.axis}"
        return f"{self.dtype.value}{where}, {self.gradient.value}{'' if self.enabled else ', off'}"


def _one_pass(values: Tensor) -> Callable[..., Tensor] | None:
    """Return what quantizes with one learned scale in one walk over the values, if anything does."""
    if is_native(values):
        return native_learned_fake_quantize
    return coded_fake_quantize if is_coded(values) else None


class DerivedBias(nn.Module):  # type: ignore[misc]
    """Quantizes a bias to int32 on the accumulator's grid: input scale x weight scale."""

    def __init__(self, source: FakeQuantizer, weight: FakeQuantizer) -> None:
        super().__init__()
        # In a tuple, so that their state is not listed twice.
        self._sources = (source, weight)

    def forward(self, bias: Tensor) -> Tensor:
        """Return the bias on the grid; the gradient passes through."""
        source, weight = self._sources
        if not weight.enabled:
            return bias
        with torch.no_grad():
            scale = (source.current_scale().double() * weight.current_scale().double()).float()
            levels = torch.round(bias.double() / scale).clamp(-(2.0**31), 2.0**31 - 1)
            grid = levels.float() * scale
        return bias + (grid - bias).detach()
