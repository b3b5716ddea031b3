"""Mixed precision under construction: the keys of ``AutoMixprecision`` before they are one goal.

A recipe under construction: options may contradict each other until all of them are known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from quantry.errors import RecipeError
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

_ALL = 10**9
_DICT = "extra_options['AutoMixprecision']"

Score = Callable[..., Any]


@dataclass(frozen=True)
class MixDraft:
    """What the keys read so far ask for.

    Attributes:
        activation: What layers may read instead.
        weight: What weights may become instead.
        bias: What biases may become instead.
        targets: What layers may become, given whole.
        operators: Operator types of the layers that may change; empty for those that usually do.
        include: Only these layers.
        exclude: Not these layers.
        output: Index of the output that counts.
        samples: Samples that say how much a layer matters; None for as many as usual.
        unshared_inputs: Leave layers alone whose input other nodes read too.
        drop: How far the score may fall.
        error: How large the mean square error may become.
        count: How many layers change.
        threshold: The limit of the metric; 0 lets all layers change.
        metric: The metric.
        score: The user's function of outputs.
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
    score: Score | None = None

    def mixed(self) -> MixedPrecision:
        """Return the finished options.

        Raises:
            RecipeError: A key is missing that another needs; the message names it.
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
            raise RecipeError(
                f"{_DICT} must say what layers may become with include_auto_mp=True: ActTargetQuantType and "
                "WeightTargetQuantType, or TargetLayerConfig; got none of them"
            )
        return (LayerTarget(self.activation, self.weight, self.bias),)

    def _goal(self) -> WithinError | WithinDrop | LayerCount:
        if self.drop is not None and self.score is None:
            raise RecipeError(f"{_DICT}['Top1AccTarget'] needs EvaluateFunction, which scores outputs; got none")
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
            raise RecipeError(
                f"{_DICT} must say what to reach: Top1AccTarget with EvaluateFunction, L2Target or NumTarget; got none"
            )
        return LayerCount(_ALL)


def _limit(metric: str, threshold: float) -> float:
    """Return a threshold of AMD Quark, where less is always better, in the unit of our metric."""
    return {"l2": threshold, "cosine": 1 - threshold}.get(metric, -threshold)


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
