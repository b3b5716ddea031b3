"""Rules about the numbers of quantized tensors: types, zero points, scales."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from quantry.graph.qdq import QuantizedTensor
from quantry.recipe import DataType, DerivedBias, FixedScale, OwnBias, PerChannel, PerGroup, PowerOfTwoScale, Recipe
from quantry.targets.rules.rule import CheckedModel, TargetRule, Violation, specs_of

_CENTRE = {ir.DataType.UINT4: 8, ir.DataType.UINT8: 128, ir.DataType.UINT16: 32768}
_PLURAL = {"activation": "activations", "weight": "weights", "bias": "biases"}


def _onnx(dtype: DataType) -> ir.DataType:
    return ir.DataType[dtype.name]


@dataclass(frozen=True, kw_only=True)
class Types(TargetRule):
    """The types that the target computes with.

    Attributes:
        activation: Types of activations and of constant operands.
        weight: Types of weights.
        bias: Types of quantized biases.
    """

    name = "type"
    whole_model = True

    activation: tuple[DataType, ...]
    weight: tuple[DataType, ...]
    bias: tuple[DataType, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        parts = ((role, _listed(self.allowed(role))) for role in ("activation", "weight", "bias"))
        return ", ".join(f"{role} {types}" for role, types in parts)

    def allowed(self, role: str) -> tuple[DataType, ...]:
        """Return the types of a role: "activation", "operand", "weight" or "bias"."""
        return {"weight": self.weight, "bias": self.bias}.get(role, self.activation)

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the tensors of other types."""
        for name, tensor in model.tensors.tensors.items():
            allowed = self.allowed(tensor.role)
            if tensor.dtype not in [_onnx(dtype) for dtype in allowed]:
                type_name = "unknown" if tensor.dtype is None else tensor.dtype.name.lower()
                names = _listed(allowed)
                yield self.broken(
                    tensor.node_name,
                    f"{tensor.role} {name!r} is {type_name}, allowed {names}",
                    f"quantize it to {names}",
                )

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with biases in steps of the accumulators, if the target has none of their own type."""
        bias = recipe.plan.bias
        if not isinstance(bias, OwnBias) or bias.spec.dtype in self.bias or DataType.INT32 not in self.bias:
            return recipe
        # Limits on fraction bits are those of NPUs with 8-bit biases.
        scale = replace(recipe.scale, npu=None)
        return replace(recipe, plan=replace(recipe.plan, bias=DerivedBias()), scale=scale)

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield the fields of a recipe that ask for other types."""
        for role, path, spec in specs_of(recipe):
            if spec.dtype not in self.allowed(role):
                allowed = _listed(self.allowed(role))
                yield f"{path}.dtype is {spec.dtype.value}, allowed for {_PLURAL[role]}: {allowed}"
        if isinstance(recipe.plan.bias, DerivedBias) and DataType.INT32 not in self.bias:
            yield f"plan.bias is DerivedBias(), which is int32, allowed for biases: {_listed(self.bias)}"


def _listed(types: tuple[DataType, ...]) -> str:
    return " or ".join(dtype.value for dtype in types) or "float"


@dataclass(frozen=True, kw_only=True)
class Centred(TargetRule):
    """Zero points at the centre of the type: symmetric quantization.

    Attributes:
        roles: Which tensors: "activation", "operand", "weight", "bias".
        unsigned: Whether the centre of an unsigned type counts; otherwise every zero point is 0.
    """

    name = "zero point"
    whole_model = True

    roles: tuple[str, ...] = ("activation", "operand", "weight", "bias")
    unsigned: bool = True

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        centre = "0 for signed types, the middle for unsigned ones" if self.unsigned else "0"
        return f"zero points of {', '.join(self.roles)}: {centre}"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the tensors with another zero point."""
        for name, tensor in model.tensors.tensors.items():
            centre = _CENTRE.get(tensor.dtype, 0) if self.unsigned and tensor.dtype is not None else 0
            if tensor.role in self.roles and (tensor.zero_points != centre).any():
                zero_point = int(tensor.zero_points.reshape(-1)[np.argmax(tensor.zero_points.reshape(-1) != centre)])
                values = f"{name!r} has zero point {zero_point}, allowed {centre}"
                yield self.broken(tensor.node_name, values, "quantize it symmetrically")

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield the fields of a recipe that ask for asymmetric tensors."""
        for role, path, spec in specs_of(recipe):
            if role not in self.roles:
                continue
            if not spec.symmetric:
                yield f"{path}.symmetric is False, and a {role} must be symmetric"
            elif not self.unsigned and spec.dtype.is_integer and not spec.dtype.is_signed:
                yield f"{path}.dtype is {spec.dtype.value}, whose centre is not 0"


@dataclass(frozen=True, kw_only=True)
class Granularity(TargetRule):
    """How many scales a tensor may have.

    Attributes:
        weights_per_channel: Whether a weight may have one scale per output channel.
        weights_per_group: Whether a weight may have one scale per group.
    """

    name = "per tensor"
    whole_model = True

    weights_per_channel: bool = False
    weights_per_group: bool = False

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        finer = [
            kind
            for kind, allowed in (("channel", self.weights_per_channel), ("group", self.weights_per_group))
            if allowed
        ]
        return "one scale per tensor" + (f"; weights also one per {' or '.join(finer)}" if finer else "")

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the tensors with too many scales, and those whose scale is not stored."""
        for name, tensor in model.tensors.tensors.items():
            if tensor.scales is None:
                values = f"the scale of {name!r} is computed at run time"
                yield self.broken(tensor.node_name, values, "store the scale as an initializer", "scale")
            elif tensor.scales.size != 1 and not self._allows(tensor):
                yield self.broken(
                    tensor.node_name, f"{name!r} has {tensor.scales.size} scales, allowed 1", "quantize it per tensor"
                )

    def _allows(self, tensor: QuantizedTensor) -> bool:
        assert tensor.scales is not None
        # A bias has one scale per channel wherever its weight has.
        if tensor.role not in ("weight", "bias"):
            return False
        return self.weights_per_channel if tensor.scales.ndim == 1 else self.weights_per_group

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield the fields of a recipe that ask for more scales."""
        for role, path, spec in specs_of(recipe):
            finer = (PerChannel, self.weights_per_channel), (PerGroup, self.weights_per_group)
            for kind, allowed in finer:
                if isinstance(spec.granularity, kind) and not (allowed and role == "weight"):
                    yield f"{path}.granularity is {kind.__name__}(), and a {role} must have one scale"


@dataclass(frozen=True, kw_only=True)
class PowersOfTwo(TargetRule):
    """Every scale is a power of two: the target shifts instead of multiplying."""

    name = "power of two"
    whole_model = True

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "every scale is a power of two"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the tensors with another scale."""
        for name, tensor in model.tensors.tensors.items():
            if tensor.scales is None or tensor.scales.size != 1 or tensor.position is not None:
                continue
            scale = tensor.scales.item()
            usable = math.isfinite(scale) and scale > 0
            nearest = f"2**{round(math.log2(scale))}" if usable else "a power of two"
            values = f"{name!r} has scale {scale:.6g}, allowed powers of two"
            yield self.broken(tensor.node_name, values, f"use {nearest} and quantize the float model again")

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield the fields of a recipe that ask for other scales."""
        for _, path, spec in specs_of(recipe):
            if spec.dtype.is_integer and not isinstance(spec.scale, PowerOfTwoScale):
                yield f"{path}.scale is not PowerOfTwoScale()"


@dataclass(frozen=True, kw_only=True)
class SmallestRange(TargetRule):
    """The range of an activation, largest minus smallest real value, must not be smaller than this.

    Attributes:
        width: The smallest width.
    """

    name = "smallest range"

    width: float

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"the range of every activation is at least {self.width:g} wide"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the activations with a narrower range."""
        for name, tensor in model.tensors.tensors.items():
            if tensor.role != "activation" or tensor.scales is None or tensor.dtype is None:
                continue
            # Half a step of slack: the width is a rounded float32 product.
            width = float(tensor.scales.max()) * (2.0 ** round(tensor.dtype.itemsize * 8) - 0.5)
            if width < self.width:
                yield self.broken(
                    tensor.node_name,
                    f"the range of {name!r} is {width:.3g} wide, allowed {self.width:g} or more",
                    "the tensor is (almost) constant: keep its node float, or calibrate on other data",
                )


@dataclass(frozen=True, kw_only=True)
class FixedScales(TargetRule):
    """Results with a scale that the target fixes.

    Attributes:
        entries: The operators and their scales.
    """

    name = "fixed scale"

    entries: tuple[FixedScale, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return ", ".join(
            f"{entry.operator} in {entry.dtype.value} has scale {entry.scale:.6g}" for entry in self.entries
        )

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the results with another scale."""
        for node in model.operators:
            for entry in self.entries:
                tensor = model.tensors.of(node.outputs[0]) if node.op_type == entry.operator else None
                if tensor is None or tensor.scales is None or tensor.dtype is not _onnx(entry.dtype):
                    continue
                written = float(tensor.scales.reshape(-1)[0]), int(tensor.zero_points.reshape(-1)[0])
                if written != (entry.scale, entry.zero_point):
                    yield self.broken(
                        node.name,
                        f"its result {node.outputs[0].name!r} has scale {written[0]:.6g} and zero point {written[1]}, "
                        f"allowed {entry.scale:.6g} and {entry.zero_point}",
                        "quantize the float model with --target, which sets the scale",
                    )

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these scales."""
        fixed = tuple(dict.fromkeys((*recipe.scale.fixed, *self.entries)))
        return replace(recipe, scale=replace(recipe.scale, fixed=fixed))
