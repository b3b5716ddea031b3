"""Which options go together: the one list of rules, checked when a recipe is made and before any work.

A rule names one field, the values it may have, the options that demand it, and why. The facades show the same rules to
their users with their own option names: `Conflict` holds the parts of a message and `Vocabulary` puts them into words.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from quantry.errors import ConflictError
from quantry.recipe.checked import brief
from quantry.recipe.formats import (
    Dynamic,
    EmitOptions,
    FixNeuron,
    Format,
    MatMulNBits,
    Qdq,
    QOperator,
    VitisDialect,
    VitisQdq,
)
from quantry.recipe.layers import MOST_DERIVED_BITS, TensorTypes, can_derive_bias, nearest_bias
from quantry.recipe.mixing import MixOptions
from quantry.recipe.npu import NpuLimits
from quantry.recipe.options import PlanOptions, ScaleOptions
from quantry.recipe.tensor_spec import (
    Bias,
    DataType,
    DerivedBias,
    FloatBias,
    OwnBias,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    PowerOfTwoScale,
    TensorSpec,
)

_BYTES = (DataType.INT8, DataType.UINT8)
_INTEGERS = (DataType.INT4, DataType.UINT4, *_BYTES, DataType.INT16, DataType.UINT16)
_FLOATS = (DataType.FLOAT16, DataType.BFLOAT16)
_FLOATS8 = (DataType.FLOAT8E4M3FN, DataType.FLOAT8E5M2)
_WIDE = (DataType.INT32, DataType.UINT32)
_BIASES = (DataType.INT8, DataType.INT16, DataType.INT32)
_NPU_BIAS = "the NPU stores 8-bit biases with their own scale"
_QUARK = VitisQdq(VitisDialect.QUARK)


class Setting(NamedTuple):
    """A field of a recipe and a value for it.

    Attributes:
        field: Dotted path, such as ``plan.weight.granularity``.
        value: The value.
    """

    field: str
    value: Any


@dataclass(frozen=True)
class Conflict:
    """An option that does not go with others.

    Attributes:
        field: Dotted path of the option that must change.
        allowed: The values it may have; a type stands for all of its values.
        reason: Why.
        conditions: The options that demand it.
        given: Its value.
        fixes: Settings of other options that would solve it too.
        place: The entry that it was found in, such as ``plan.layers[0]``; empty for the whole model.
    """

    field: str
    allowed: tuple[Any, ...]
    reason: str
    conditions: tuple[Setting, ...]
    given: Any
    fixes: tuple[Setting, ...] = ()
    place: str = ""

    @property
    def nearest(self) -> Any:
        """The allowed value to suggest; of types the one that is most like the one given."""
        if not isinstance(self.given, DataType):
            return self.allowed[0]
        value = self.given
        return min(self.allowed, key=lambda dtype: (dtype.is_signed != value.is_signed, abs(dtype.bits - value.bits)))


class Vocabulary:
    """Words for options; this one uses the fields of a recipe. Facades override the names and the values."""

    def message(self, conflict: Conflict) -> str:
        """Return the message: what must hold, why, what was given, and what to use instead."""
        demanded = " and ".join(self.setting(*condition) for condition in conflict.conditions)
        alternatives = " or ".join(self.setting(*fix) for fix in conflict.fixes)
        fixes = (self.fix(conflict), *([alternatives] if alternatives else []))
        prefix = f"{self.place(conflict.place)}: " if conflict.place else ""
        return (
            f"{prefix}{self.name(conflict.field)} must be {self.allowed(conflict)} with {demanded}, because "
            f"{conflict.reason}; got {self.given_value(conflict)}; {', or '.join(fixes)}"
        )

    def name(self, field: str) -> str:
        """Return what an option is called."""
        return field

    def place(self, place: str) -> str:
        """Return what the entry of a layer is called."""
        return place

    def value(self, field: str, value: Any) -> str:
        """Return a value of an option; a type stands for all of its values."""
        del field
        if isinstance(value, type):
            return f"{value.__name__}()"
        if isinstance(value, enum.Enum) or not hasattr(value, "__dataclass_fields__"):
            return brief(value)
        text = brief(value)
        return text if text.endswith(")") else f"{text}()"

    def setting(self, field: str, value: Any) -> str:
        """Return an option with a value."""
        return f"{self.name(field)} = {self.value(field, value)}"

    def allowed(self, conflict: Conflict) -> str:
        """Return the values that are allowed."""
        *initial, last = dict.fromkeys(self.value(conflict.field, value) for value in conflict.allowed)
        return f"{', '.join(initial)} or {last}" if initial else last

    def given_value(self, conflict: Conflict) -> str:
        """Return the value that was given."""
        return self.value(conflict.field, conflict.given)

    def fix(self, conflict: Conflict) -> str:
        """Return how to change the option itself."""
        return f"set {self.setting(conflict.field, conflict.nearest)}"


def conflict_error(conflict: Conflict, words: Vocabulary) -> ConflictError:
    """Return the error of a conflict in a vocabulary."""
    error = ConflictError(words.message(conflict))
    error.conflict = conflict
    return error


class _Options(NamedTuple):
    """The options that rules look at."""

    plan: PlanOptions
    scale: ScaleOptions
    emit: EmitOptions

    def get(self, field: str) -> Any:
        value: Any = self
        for name in field.split("."):
            value = getattr(value, name)
        return value


class _Rule(NamedTuple):
    """What the conditions demand of one field; see `Conflict`."""

    field: str
    allowed: tuple[Any, ...]
    reason: str
    conditions: tuple[Setting, ...]
    fixes: tuple[Setting, ...] = ()

    def check(self, options: _Options, layer: str) -> None:
        value = options.get(self.field)
        # A type in `allowed` stands for all of its values, such as PerGroup of any size.
        if not any(isinstance(value, entry) if isinstance(entry, type) else value == entry for entry in self.allowed):
            conflict = Conflict(self.field, self.allowed, self.reason, self.conditions, value, self.fixes, layer)
            raise conflict_error(conflict, Vocabulary())


def check_options(plan: PlanOptions, scale: ScaleOptions, mix: MixOptions, emit: EmitOptions) -> None:
    """Refuse options that do not go together, for the whole model and for every layer and tensor with its own types.

    Args:
        plan: The types.
        scale: How ranges are chosen, and whether the NPU's limits apply.
        mix: What layers may become.
        emit: The format.

    Raises:
        ConflictError: Two options do not go together; the message names the nearest setting that works.
    """
    _check(_Options(plan, scale, emit), "")
    for layer, variant in _variants(plan, mix):
        _check(_Options(variant, scale, emit), layer)


def _check(options: _Options, layer: str) -> None:
    # The NPU's rules first: their messages name the nearest setting that the NPU supports.
    for rules in (_npu_rules(options, single=bool(layer)), _weight_rules(options), _type_rules(options)):
        for rule in rules:
            rule.check(options, layer)
    # The rules of a bias read the types, so these must be right first.
    for rule in _bias_rules(options):
        rule.check(options, layer)


def _npu_rules(options: _Options, *, single: bool) -> Iterator[_Rule]:
    """What an integer NPU with power-of-two scales computes with; single layers may have 16 bits."""
    if options.scale.npu is None:
        return
    words = (DataType.INT16,) if single else ()
    demands: list[tuple[str, tuple[Any, ...], str]] = [
        ("plan.weights_only", (False,), "the NPU multiplies integers only"),
        *_npu_tensor("plan.activation", (*_BYTES, *words)),
        *_npu_tensor("plan.weight", (DataType.INT8, *words)),
    ]
    if isinstance(options.plan.bias, OwnBias):
        demands += _npu_tensor("plan.bias.spec", (DataType.INT8, *words))
    own_bias = OwnBias(TensorSpec(DataType.INT8, scale=PowerOfTwoScale()))
    demands += [
        ("plan.bias", (own_bias,) if not isinstance(options.plan.bias, OwnBias) else (OwnBias,), _NPU_BIAS),
        ("scale.reduce_range", (False,), "the NPU's accumulators hold products of 8 bits"),
    ]
    conditions = (Setting("scale.npu", NpuLimits()),)
    for field, allowed, reason in demands:
        yield _Rule(field, allowed, reason, conditions, (Setting("scale.npu", None),))


def _npu_tensor(tensor: str, types: tuple[DataType, ...]) -> list[tuple[str, tuple[Any, ...], str]]:
    reasons = {"plan.activation": "the NPU multiplies bytes", "plan.weight": "the NPU multiplies signed bytes"}
    return [
        (f"{tensor}.dtype", types, reasons.get(tensor, _NPU_BIAS)),
        (f"{tensor}.scale", (PowerOfTwoScale(),), "the NPU rescales by shifting"),
        (f"{tensor}.symmetric", (True,), "the NPU adds no zero points"),
        (f"{tensor}.granularity", (PerTensor(),), "the NPU has one shift per tensor"),
    ]


def _weight_rules(options: _Options) -> Iterator[_Rule]:
    """Formats whose activations stay float, and weights with one scale per group or channel."""
    plan, emitted = options.plan, options.emit.format
    here, pairs = Setting("emit.format", emitted), Setting("emit.format", Qdq())
    if isinstance(emitted, Dynamic | MatMulNBits):
        yield _Rule("plan.weights_only", (True,), "activations stay float in this format", (here,), (pairs,))
        yield _Rule(
            "plan.bias", (FloatBias, DerivedBias), "this format adds the bias to a float result", (here,), (pairs,)
        )
    if isinstance(emitted, QOperator):
        yield _Rule(
            "plan.weights_only",
            (False,),
            "its operators read integer activations",
            (here,),
            (pairs, Setting("emit.format", Dynamic())),
        )
    if isinstance(emitted, MatMulNBits):
        yield _Rule("plan.weight.granularity", (PerGroup,), "MatMulNBits has one scale per group", (here,), (pairs,))
    weight = Setting("plan.weight.granularity", plan.weight.granularity)
    per_channel = Setting("plan.weight.granularity", PerChannel())
    if isinstance(plan.weight.granularity, PerGroup):
        yield _Rule(
            "emit.format", (MatMulNBits, Qdq), "other formats have no scales per group", (weight,), (per_channel,)
        )
        reason = "an integer product has one scale for all values it adds up"
        yield _Rule("plan.weights_only", (True,), reason, (weight,), (per_channel,))
    if isinstance(emitted, Dynamic) and isinstance(plan.weight.granularity, PerChannel):
        reason = "ConvInteger has one zero point for all channels"
        per_tensor = Setting("plan.weight.granularity", PerTensor())
        yield _Rule("plan.weight.symmetric", (True,), reason, (here, weight), (per_tensor,))
    if isinstance(plan.weight.granularity, PerChannel) and plan.weight.dtype in (*_WIDE, *_FLOATS):
        wide = plan.weight.dtype in _WIDE
        reason = "the operator for 32 bits takes one scale" if wide else "16-bit floats have no scale"
        condition = Setting("plan.weight.dtype", plan.weight.dtype)
        narrow = Setting("plan.weight.dtype", DataType.INT16 if wide else DataType.INT8)
        yield _Rule("plan.weight.granularity", (PerTensor(),), reason, (condition,), (narrow,))


def _types(emitted: Format) -> tuple[tuple[DataType, ...], str]:
    """Return the types of activations and weights that a format has, and why it has no others."""
    if isinstance(emitted, Qdq):
        return (*_INTEGERS, *_FLOATS, *_FLOATS8), "standard ONNX has Q/DQ pairs and casts for no other types"
    if emitted == _QUARK:
        return tuple(dtype for dtype in DataType if not dtype.is_float8), "8-bit floats are standard ONNX"
    if isinstance(emitted, Dynamic):
        return _BYTES, "ConvInteger and MatMulInteger have 8-bit weights"
    if isinstance(emitted, MatMulNBits):
        return (DataType.INT4, DataType.UINT4, *_BYTES), "its kernel unpacks 4 or 8 bits"
    if isinstance(emitted, QOperator):
        return _BYTES, "its kernels have 8 bits"
    if isinstance(emitted, FixNeuron):
        return _INTEGERS, "FixNeuron stores one bit position per tensor, for at most 16 bits"
    return _INTEGERS, "this dialect has no other types"


def _type_rules(options: _Options) -> Iterator[_Rule]:
    """Types, scales and symmetry that the format can express."""
    plan, emitted = options.plan, options.emit.format
    here = (Setting("emit.format", emitted),)
    types, reason = _types(emitted)
    paths = ["plan.weight"] if plan.weights_only else ["plan.activation", "plan.weight"]
    for path in paths:
        dtype = options.get(f"{path}.dtype")
        carrier = Qdq() if dtype in _types(Qdq())[0] else _QUARK
        yield _Rule(f"{path}.dtype", types, reason, here, (Setting("emit.format", carrier),))
    if isinstance(plan.bias, OwnBias):
        floats = tuple(dtype for dtype in types if not dtype.is_integer)
        reason = reason if plan.bias.spec.dtype.is_integer is False else "runtimes read biases as signed integers"
        yield _Rule("plan.bias.spec.dtype", (*_BIASES, *floats), reason, here, (Setting("plan.bias", FloatBias()),))
        paths.append("plan.bias.spec")
    if isinstance(emitted, QOperator) and plan.activation.dtype == DataType.INT8:
        conditions = (*here, Setting("plan.activation.dtype", DataType.INT8))
        fixes = (Setting("plan.activation.dtype", DataType.UINT8), Setting("emit.format", Qdq()))
        yield _Rule("plan.weight.dtype", (DataType.INT8,), "onnxruntime has no other kernel", conditions, fixes)
    if isinstance(emitted, FixNeuron):
        reason = "FixNeuron stores one bit position per tensor and nothing else"
        for path in paths:
            for name, value in (("scale", PowerOfTwoScale()), ("symmetric", True), ("granularity", PerTensor())):
                yield _Rule(f"{path}.{name}", (value,), reason, here, (Setting("emit.format", VitisQdq()),))


def _bias_rules(options: _Options) -> Iterator[_Rule]:
    plan = options.plan
    types = tuple(Setting(f"{path}.dtype", options.get(f"{path}.dtype")) for path in ("plan.activation", "plan.weight"))
    if isinstance(plan.bias, OwnBias):
        condition = (Setting("plan.bias", plan.bias),)
        yield _Rule(
            "plan.bias.spec.granularity", (PerTensor(), PerBlock), "a bias has one value per channel", condition
        )
        if plan.bias.spec.dtype in _WIDE and not plan.weights_only and all(dtype in _BYTES for _, dtype in types):
            reason = "onnxruntime's integer kernels expect a 32-bit bias on the grid of input scale x weight scale"
            yield _Rule(
                "plan.bias.spec.dtype",
                (DataType.INT8, DataType.INT16),
                reason,
                types,
                (Setting("plan.bias", DerivedBias()),),
            )
    if isinstance(plan.bias, DerivedBias) and not plan.weights_only:
        integers = all(dtype.is_integer for _, dtype in types)
        reason = (
            f"the product of the scales of more than {MOST_DERIVED_BITS} bits is so fine that biases overflow int32"
            if integers
            else "its scale is the product of the scales of activation and weight, and both must have one"
        )
        if not can_derive_bias(plan.activation, plan.weight):
            own_bias = OwnBias(TensorSpec(DataType.INT32) if integers else plan.weight)
            float8 = any(dtype in _FLOATS8 for _, dtype in types)  # whose products are summed in float
            yield _Rule("plan.bias", (FloatBias(),) if float8 else (own_bias, FloatBias()), reason, types)


def _variants(plan: PlanOptions, mix: MixOptions) -> Iterator[tuple[str, PlanOptions]]:
    """Yield, for each entry of layers and tensors, the plan in which it holds for the whole model."""
    base = replace(plan, layers=(), tensors=())
    for index, layer in enumerate(plan.layers):
        if not layer.keep_float:
            yield f"plan.layers[{index}]", _with_types(base, layer.activation, layer.weight, layer.bias)
        if layer.second_input is not None:
            yield f"plan.layers[{index}].second_input", _with_types(base, layer.second_input, None, None)
        if layer.output is not None:
            # The output of a layer is the input of others, so it must be a possible activation as well.
            yield f"plan.layers[{index}].output", _with_types(base, layer.output, None, None)
    for index, tensor in enumerate(plan.tensors):
        yield f"plan.tensors[{index}]", _with_tensor(base, tensor)
        if tensor.convert is not None:
            yield f"plan.tensors[{index}].convert", _with_types(base, tensor.convert, None, None)
    for index, target in enumerate(() if mix.mixed is None else mix.mixed.targets):
        yield f"mix.mixed.targets[{index}]", _with_types(base, target.activation, target.weight, target.bias)


def _with_types(
    base: PlanOptions, activation: TensorSpec | None, weight: TensorSpec | None, bias: Bias | None
) -> PlanOptions:
    activation, weight = activation or base.activation, weight or base.weight
    bias = bias or nearest_bias(base.bias, activation, weight)
    return replace(base, activation=activation, weight=weight, bias=bias)


def _with_tensor(base: PlanOptions, tensor: TensorTypes) -> PlanOptions:
    # Only the model says whether it is an activation, a weight or a bias; 32 bits are mostly for biases.
    if tensor.spec.dtype == DataType.INT32:
        wide = replace(base.weight, dtype=DataType.INT16) if base.weight.dtype.is_integer else base.weight
        return replace(base, weight=wide, bias=OwnBias(tensor.spec))
    return replace(base, weight=tensor.spec, bias=nearest_bias(base.bias, base.activation, tensor.spec))
