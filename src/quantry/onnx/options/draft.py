"""A recipe under construction: options may contradict each other until all of them are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.combinations import WIDEST_DERIVED_BIAS, check_draft
from quantry.onnx.options.mix_draft import MixDraft
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    Bias,
    BiasCorrection,
    DataType,
    DerivedBias,
    EmitOptions,
    EqualizeOptions,
    FixNeuron,
    FloatBias,
    Format,
    Gptq,
    MixOptions,
    ObserveOptions,
    OwnBias,
    PlanOptions,
    PrepareOptions,
    Qdq,
    Recipe,
    ScaleOptions,
    TensorSpec,
    TuneOptions,
    TuneStep,
    VitisDialect,
    VitisQdq,
)


@dataclass(frozen=True)
class RandomInputs:
    """Random calibration data that were asked for.

    Attributes:
        shapes: Shapes of inputs by name, where they are not the model's.
        ranges: Lowest and highest value of inputs by name.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """What the options read so far ask for.

    Attributes:
        prepare: Options of the stage.
        equalize: Options of the stage.
        observe: Options of the stage.
        plan: Options of the stage, but for the bias.
        bias: What biases become; None follows from the types.
        scale: Options of the stage.
        mix: Mixed precision; None keeps the plan.
        gptq: GPTQ; None rounds weights to the nearest.
        bias_correction: Bias correction; None leaves biases.
        finetune: AdaRound or AdaQuant; None trains nothing.
        format: The format; None for the vendor's pairs, whose dialect follows from the types.
        tensor_types: Whether types of single tensors count.
        channels_last: Whether inputs are given with their channels last.
        npu: Whether the rules of an integer NPU are asked for.
        random: Random calibration data; None takes the caller's.
        dedicated_pairs: Whether every reader of an activation gets a pair of its own.
        random_given: Whether random data were asked for by name.
        fixed_shapes: New shapes of inputs by name.
        evaluate: Whether the result is compared with the float model.
        evaluation_data: Data for that; None takes the calibration data.
        external_data: Whether weights are written beside the model.
        summary: Whether a line about the result is logged.
        quiet: Whether options without bearing are logged as information and not as warnings.
        log_severity: How much is logged, as onnxruntime counts: 0 everything to 4 nothing; None as it is set.
        notes: Options that have no bearing on what was chosen.
    """

    prepare: PrepareOptions = PrepareOptions()
    equalize: EqualizeOptions = EqualizeOptions()
    observe: ObserveOptions = ObserveOptions()
    plan: PlanOptions = PlanOptions(bias=FloatBias())
    bias: Bias | None = None
    scale: ScaleOptions = ScaleOptions()
    mix: MixDraft | None = None
    gptq: Gptq | None = None
    bias_correction: BiasCorrection | None = None
    finetune: AdaRound | AdaQuant | None = None
    format: Format | None = Qdq()
    tensor_types: bool = False
    channels_last: bool = False
    npu: bool = False
    random: RandomInputs = RandomInputs()
    dedicated_pairs: bool = False
    random_given: bool = False
    fixed_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    evaluate: bool = False
    evaluation_data: Any = None
    external_data: bool = False
    summary: bool = True
    quiet: bool = True
    log_severity: int | None = None
    notes: tuple[str, ...] = ()

    def noted(self, note: str) -> "Draft":
        """Return the draft with one more note."""
        return replace(self, notes=(*self.notes, note))

    def recipe(self, name: str = "custom") -> Recipe:
        """Return the finished recipe.

        Args:
            name: Its label.

        Raises:
            RecipeError: Two options do not go together; the message has the nearest setting that works.
        """
        check_draft(self)
        plan = replace(self.plan, bias=self.bias or self._natural_bias())
        return Recipe(
            name=name,
            prepare=self.prepare,
            equalize=self.equalize,
            observe=self.observe,
            plan=plan,
            scale=self.scale,
            mix=MixOptions(None if self.mix is None else self.mix.mixed()),
            tune=TuneOptions(self._steps()),
            emit=EmitOptions(self.format or VitisQdq(self._dialect()), self.dedicated_pairs),
        )

    def _steps(self) -> tuple[TuneStep, ...]:
        # In the order of AMD Quark, whatever the order of the options.
        found = (self.gptq, self.bias_correction, self.finetune)
        return tuple(step for step in found if step is not None)

    def _natural_bias(self) -> DerivedBias | OwnBias:
        activation, weight = self.plan.activation, self.plan.weight
        if self.plan.weights_only:
            return DerivedBias()
        if self.npu or isinstance(self.format, FixNeuron):
            return OwnBias(TensorSpec(DataType.INT8, scale=weight.scale))
        if not weight.dtype.is_integer:
            return OwnBias(weight)
        if not activation.dtype.is_integer or activation.dtype.bits + weight.dtype.bits > WIDEST_DERIVED_BIAS:
            return OwnBias(TensorSpec(DataType.INT32, scale=weight.scale))
        return DerivedBias()

    def _dialect(self) -> VitisDialect:
        layers = (entry for layer in self.plan.layers for entry in (layer.activation, layer.output, layer.weight))
        targets = () if self.mix is None else self.mix.mixed().targets
        mixed = (entry for target in targets for entry in (target.activation, target.weight))
        singles = (entry for entry in (*layers, *mixed) if entry is not None)
        specs = (
            self.plan.activation,
            self.plan.weight,
            *singles,
            *(entry.spec for entry in self.plan.tensors),
        )
        plain = all(spec.dtype.is_integer and spec.dtype.bits <= 16 for spec in specs)
        return VitisDialect.CONTRIB if plain else VitisDialect.QUARK


def own_bias_spec(weight: TensorSpec) -> TensorSpec:
    """Return what a bias with a scale of its own is quantized to beside such weights."""
    if not weight.dtype.is_integer:
        return weight
    signed = {DataType.UINT8: DataType.INT8, DataType.UINT16: DataType.INT16, DataType.UINT32: DataType.INT32}
    dtype = signed.get(weight.dtype, weight.dtype)
    dtype = DataType.INT8 if dtype.bits < 8 else dtype
    return TensorSpec(dtype, scale=weight.scale)


def with_field(value: Any, path: str, new: Any) -> Any:
    """Return a copy of nested frozen values with one field replaced.

    Args:
        value: A dataclass.
        path: Dotted path of the field.
        new: Its new value.

    Example:
        >>> with_field(Draft(), "prepare.opset", 17).prepare.opset
        17
    """
    head, _, rest = path.partition(".")
    assert is_dataclass(value)
    assert head in {part.name for part in fields(value)}
    return replace(value, **{head: with_field(getattr(value, head), rest, new) if rest else new})  # type: ignore[type-var]


def refuse(where: str, given: object, reason: str) -> RecipeError:
    """Return the error of an option that cannot be had."""
    return RecipeError(f"{where} cannot be {given!r}: {reason}")
