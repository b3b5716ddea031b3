"""A recipe under construction: options may contradict each other until all of them are known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from quantry.errors import OptionError, RecipeError
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
    LayerCount,
    LayerTarget,
    MixedPrecision,
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
    WithinDrop,
    WithinError,
)
from quantry.recipe.layers import can_derive_bias

_ALL = 10**9  # More layers than any model has.
_DICT = "extra_options['AutoMixprecision']"

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class MixDraft:
    """The keys of ``AutoMixprecision`` that have been read so far.

    Attributes:
        activation: Target type of activations.
        weight: Target type of weights.
        bias: Target type of biases.
        targets: Complete targets; they replace the three above.
        operators: Operator types of the layers that may change; empty for the default ones.
        include: Only these layers may change.
        exclude: These layers may not change.
        output: Index of the output that is compared.
        samples: Samples that sensitivity is measured on; None for the default number.
        unshared_inputs: Skip layers whose input other nodes read too.
        drop: How far the score may fall.
        error: Limit of the mean squared error.
        count: Number of layers that change.
        threshold: Limit of the metric; 0 changes all layers.
        metric: The metric.
        score: The user's score of outputs.
    """

    activation: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    targets: tuple[LayerTarget, ...] = ()
    operators: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    output: int | None = None
    samples: int | None = None
    unshared_inputs: bool = False
    drop: float | None = None
    error: float | None = None
    count: int | None = None
    threshold: float = 0.0
    metric: str = "l2"
    score: Callable[..., Any] | None = None

    def mixed(self) -> MixedPrecision:
        """Return the finished options.

        Raises:
            RecipeError: A key that another one needs is missing; the message names it.
        """
        fixed: dict[str, Any] = {"operators": self.operators} if self.operators else {}
        if self.samples is not None:
            fixed["samples"] = self.samples
        return MixedPrecision(
            self._targets(),
            self._goal(),
            include=self.include,
            exclude=self.exclude,
            output=self.output,
            unshared_inputs=self.unshared_inputs,
            **fixed,
        )

    def _targets(self) -> tuple[LayerTarget, ...]:
        if self.targets:
            return self.targets
        if self.activation is None and self.weight is None:
            raise OptionError(
                f"{_DICT} must have target types with include_auto_mp=True: ActTargetQuantType and "
                "WeightTargetQuantType, or TargetLayerConfig; got none of them"
            )
        return (LayerTarget(self.activation, self.weight, self.bias),)

    def _goal(self) -> WithinError | WithinDrop | LayerCount:
        if self.drop is not None and self.score is None:
            raise OptionError(f"{_DICT}['Top1AccTarget'] needs EvaluateFunction, which scores the outputs; got none")
        if self.drop is not None:
            return WithinDrop(self.drop)
        if self.error is not None:
            return WithinError(self.error)
        if self.count is not None:
            return LayerCount(self.count)
        if self.score is not None:
            return WithinDrop(self.threshold)
        if self.threshold:
            return WithinError(_limit(self.metric, self.threshold), self.metric)
        if not self.targets:
            raise OptionError(
                f"{_DICT} must have a goal: Top1AccTarget with EvaluateFunction, L2Target or NumTarget; got none"
            )
        return LayerCount(_ALL)


def _limit(metric: str, threshold: float) -> float:
    """Return AMD Quark's threshold as a limit of our metric: in AMD Quark smaller is always better."""
    return {"l2": threshold, "cosine": 1 - threshold}.get(metric, -threshold)


@dataclass(frozen=True)
class RandomInputs:
    """Settings of random calibration data.

    Attributes:
        shapes: Shapes of inputs by name or in their order, if they differ from the model's.
        ranges: Lowest and highest value of inputs by name.
    """

    shapes: Any = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeDraft:
    """The options that have been read so far.

    Attributes:
        prepare: Options of the stage.
        equalize: Options of the stage.
        observe: Options of the stage.
        plan: Options of the stage, except the bias.
        bias: Type of biases; None follows from the other types.
        scale: Options of the stage.
        mix: Mixed precision; None keeps the types of the plan.
        gptq: GPTQ; None rounds weights to nearest.
        bias_correction: Bias correction; None skips it.
        finetune: AdaRound or AdaQuant; None trains nothing.
        format: The format; None for vendor pairs, whose dialect follows from the types.
        tensor_types: Whether MixedPrecisionTensor is applied.
        channels_last: Whether the model's inputs become channels-last.
        npu: Whether the rules of an integer NPU apply.
        random: Settings of random calibration data.
        temporary_folder: Folder of temporary files; None takes that of Python's tempfile.
        quantize_fp16: Whether a float16 model is quantized and keeps its float types.
        fp32_scale: Whether such a model has float32 scales.
        dedicated_pairs: Whether every reader of an activation gets a separate Q/DQ pair.
        random_given: Whether random data was requested explicitly.
        fixed_shapes: New shapes of inputs by name.
        evaluate: Whether the result is compared with the float model.
        evaluation_data: Data for that; None takes the calibration data.
        external_data: Whether weights are stored outside the model file.
        summary: Whether a summary is logged.
        quiet: Whether options without effect are logged as information instead of warnings.
        log_severity: onnxruntime's logging level, 0 (everything) to 4 (nothing); None keeps the current one.
        notes: Options that have no effect.
    """

    prepare: PrepareOptions = PrepareOptions()
    equalize: EqualizeOptions = EqualizeOptions()
    observe: ObserveOptions = ObserveOptions()
    plan: PlanOptions = PlanOptions(bias=FloatBias())  # `recipe` replaces the bias when all types are known.
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
    temporary_folder: str | None = None
    quantize_fp16: bool = False
    fp32_scale: bool = True
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

    def with_note(self, note: str) -> "RecipeDraft":
        """Return the draft with one more note."""
        return replace(self, notes=(*self.notes, note))

    def recipe(self, name: str = "custom") -> Recipe:
        """Return the finished recipe.

        Args:
            name: Its label.

        Raises:
            ConflictError: Two options do not go together, in the names of a recipe.
        """
        plan = replace(self.plan, bias=self.bias or self._default_bias())
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
        # AMD Quark's order, independent of the order of the options.
        steps = (self.gptq, self.bias_correction, self.finetune)
        return tuple(step for step in steps if step is not None)

    def _default_bias(self) -> DerivedBias | OwnBias | FloatBias:
        activation, weight = self.plan.activation, self.plan.weight
        if activation.dtype.is_float8 or weight.dtype.is_float8:
            return FloatBias()  # Products of 8-bit floats are summed in float.
        if self.plan.weights_only:
            return DerivedBias()  # It stays float: no activation has a scale to derive it from.
        # The NPU stores 8-bit biases, and FixNeuron is its format.
        if self.npu or isinstance(self.format, FixNeuron):
            return OwnBias(TensorSpec(DataType.INT8, scale=weight.scale))
        if not weight.dtype.is_integer:
            return OwnBias(weight)
        if not can_derive_bias(activation, weight):
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
            *(spec for entry in self.plan.tensors for spec in (entry.spec, entry.convert) if spec is not None),
        )
        # com.microsoft has pairs for integers up to 16 bits; all other types need com.amd.quark.
        plain = all(spec.dtype.is_integer and spec.dtype.bits <= 16 for spec in specs)
        return VitisDialect.CONTRIB if plain else VitisDialect.QUARK


def own_bias_spec(weight: TensorSpec) -> TensorSpec:
    """Return the type of a bias with its own scale for weights of this type: signed, at least 8 bits."""
    if not weight.dtype.is_integer:
        return weight
    signed = {DataType.UINT8: DataType.INT8, DataType.UINT16: DataType.INT16, DataType.UINT32: DataType.INT32}
    dtype = signed.get(weight.dtype, weight.dtype)
    dtype = DataType.INT8 if dtype.bits < 8 else dtype  # No format has biases below 8 bits.
    return TensorSpec(dtype, scale=weight.scale)


def with_field(value: _Value, path: str, new: Any) -> _Value:
    """Return a copy of nested dataclasses with one field replaced.

    Args:
        value: A dataclass.
        path: Dotted path of the field.
        new: Its new value.

    Example:
        >>> with_field(RecipeDraft(), "prepare.opset", 17).prepare.opset
        17
    """
    head, _, tail = path.partition(".")
    assert is_dataclass(value)
    assert head in {field.name for field in fields(value)}
    return replace(value, **{head: with_field(getattr(value, head), tail, new) if tail else new})  # type: ignore[type-var]


def refuse(option: str, value: object, reason: str) -> RecipeError:
    """Return the error for an unsupported value of an option."""
    return OptionError(f"{option} cannot be {value!r}: {reason}")
