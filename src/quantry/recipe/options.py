"""Options of the stages prepare, observe, plan, scale and evaluate."""

from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling
from quantry.facts.operators import FUSIBLE, operators_where
from quantry.recipe.checked import Checked
from quantry.recipe.layers import LayerTypes, Selection, TensorTypes, check_activation
from quantry.recipe.methods import Method, MinMax, MinMSE, NonOverflow
from quantry.recipe.npu import NpuConversions, NpuLimits
from quantry.recipe.tensor_spec import Bias, DataType, DerivedBias, TensorSpec


@dataclass(frozen=True)
class Dimension(Checked):
    """The size of a dynamic axis.

    Attributes:
        name: Its name in the model, such as ``height``.
        size: Its size.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise RecipeError(f"Dimension.size must be at least 1, got {self.size!r} for {self.name!r}")


@dataclass(frozen=True)
class PrepareOptions(Checked):
    """Clean-up of the float graph before calibration.

    Attributes:
        infer_shapes: Infer the shape of every tensor.
        fold_constants: Replace nodes with constant inputs by their results.
        fold_batch_norm: Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it.
        remove_identities: Remove Identity, Dropout at inference and other nodes that return their input unchanged.
        restore_hard_swish: Write HardSwish and HardSigmoid that an exporter took apart into Add, Clip, Mul and Div as
            ``x * HardSigmoid(x)`` and HardSigmoid, so that their steps are not rounded.
        clip6_to_relu: Replace Clip(0, 6) by Relu; this changes the function, so it is off by default.
        average_pool_to_conv: Replace AveragePool by a depthwise Conv that computes the same, for runtimes whose integer
            pools are slow.
        fold_pads: Fold zero padding into the Conv after it. onnxruntime does so in float models; between Q/DQ pairs it
            cannot, and pads in float.
        float16_to_float32: Convert a float16 model to float32.
        opset: Convert the model to at least this opset; None keeps the model's if the requested types allow it.
        npu: Replace operators by what an integer NPU computes instead; None keeps them.
        batch: Fix the first axis of every input to this size if it is dynamic; None keeps it.
        dimensions: Fix dynamic axes by their name.
    """

    infer_shapes: bool = True
    fold_constants: bool = True
    fold_batch_norm: bool = True
    remove_identities: bool = True
    restore_hard_swish: bool = True
    clip6_to_relu: bool = False
    average_pool_to_conv: bool = False
    fold_pads: bool = False
    float16_to_float32: bool = False
    opset: int | None = None
    npu: NpuConversions | None = None
    batch: int | None = None
    dimensions: tuple[Dimension, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is not None and self.batch < 1:
            raise RecipeError(f"PrepareOptions.batch must be at least 1, got {self.batch!r}")
        if self.opset is not None and self.opset < 1:
            raise RecipeError(f"PrepareOptions.opset must be at least 1, got {self.opset!r}")


@dataclass(frozen=True)
class ObserveOptions(Checked):
    """The float pass over the calibration data.

    Attributes:
        samples: Maximum number of samples; None uses all.
        providers: onnxruntime execution providers in order of preference.
    """

    samples: int | None = None
    providers: tuple[str, ...] = ("CPUExecutionProvider",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None and self.samples < 1:
            raise RecipeError(f"ObserveOptions.samples must be at least 1, got {self.samples!r}")


FUSIBLE_ACTIVATIONS = FUSIBLE


@dataclass(frozen=True)
class PlanOptions(Checked):
    """Which tensors are quantized, and to which types.

    Attributes:
        activation: Type of activations.
        weight: Type of constant weights.
        bias: Type of biases.
        selection: Which nodes are quantized.
        fused_activations: Activation functions that the runtime fuses with the operator before them; the tensor between
            the two is not quantized.
        force_pass_through: Quantize operators that only move data (Reshape, MaxPool, ...) even if their input is not
            quantized otherwise.
        float_final_joins: Keep a Concat at the end of the model, and the reshapes around it, in float, so that boxes
            and scores of a detector keep separate scales.
        float_post_processing: Keep the decoding and selection of boxes after the last layer with weights in float.
        float_final_pools: Keep an average pool after the last layer with weights, and what follows it, in float: NPUs
            give a pool the range of its input, which leaves few levels for the means that decide.
        float_residuals: Keep the sums that a LayerNormalization reads in float.
        constant_right_operand_only: Quantize MatMul only if its right operand is constant.
        weights_only: Quantize only the weights of Conv, ConvTranspose, Gemm and MatMul; all activations stay float and
            ``activation`` is ignored. A `DerivedBias` stays float too, because its scale needs that of an activation.
        every_operator: Also quantize inputs and results of operators that quantry keeps float for accuracy or has no
            rule for; control flow and recurrent operators stay float.
        layers: Layers with other types; later entries win.
        tensors: Tensors with other types, with priority over ``layers``; later entries win.
        extra_operators: Operator types to which ``every_operator`` applies if it is off for the others.
        body_weights: Quantize the weights of layers inside the bodies of If, Loop and Scan.
        body_activations: Quantize activations there too, in bodies whose weights are quantized.
        inputs_only: Quantize what the selected operators read; their results stay float unless another one reads them.
        float_pixels: Keep a Conv that reads an image (a model input of at most 4 channels) in float, unless it is the
            only Conv: the few digits of 8-bit floats lose differences between bright pixels.
        float_outputs: Operator types whose results stay float unless another quantized node reads them.
        pass_through: Operator types that are quantized only if a tensor they read is quantized already, as those that
            only move data are.
    """

    activation: TensorSpec = TensorSpec(symmetric=False)
    weight: TensorSpec = TensorSpec()
    bias: Bias = DerivedBias()
    selection: Selection = Selection()
    fused_activations: tuple[str, ...] = FUSIBLE_ACTIVATIONS
    force_pass_through: bool = False
    float_final_joins: bool = True
    float_post_processing: bool = True
    float_final_pools: bool = False
    float_residuals: bool = False
    constant_right_operand_only: bool = False
    weights_only: bool = False
    every_operator: bool = False
    layers: tuple[LayerTypes, ...] = ()
    tensors: tuple[TensorTypes, ...] = ()
    extra_operators: tuple[str, ...] = ()
    body_weights: bool = True
    body_activations: bool = True
    inputs_only: bool = False
    float_pixels: bool = False
    float_outputs: tuple[str, ...] = ()
    pass_through: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for operator in self.fused_activations:
            if operator not in FUSIBLE_ACTIVATIONS:
                raise RecipeError(
                    f"PlanOptions.fused_activations must be among {FUSIBLE_ACTIVATIONS}, got {operator!r}"
                    f"{nearest_spelling(operator, FUSIBLE_ACTIVATIONS)}"
                )
        check_activation("PlanOptions.activation", self.activation)


ALIGNABLE_OPERATORS = operators_where(lambda row: row.alignable)


@dataclass(frozen=True)
class FixedScale(Checked):
    """The one scale that a target has for results of an operator.

    Attributes:
        operator: The operator type.
        dtype: Type of the results; those of other types keep the scale of calibration.
        scale: The scale.
        zero_point: The zero point.
    """

    operator: str
    dtype: DataType
    scale: float
    zero_point: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0:
            raise RecipeError(f"FixedScale.scale must be positive, got {self.scale!r} for {self.operator}")
        if not self.dtype.is_integer or not self.dtype.lowest <= self.zero_point <= self.dtype.highest:
            raise RecipeError(
                f"FixedScale.zero_point must be a value of its integer type, got {self.zero_point!r} of "
                f"{self.dtype.value} for {self.operator}"
            )


@dataclass(frozen=True)
class GivenRange(Checked):
    """Range, or scale and zero point, of one tensor, instead of what calibration finds.

    Each field has one number for the tensor, or one for each channel; empty fields are not given.

    Attributes:
        tensor: Name of the activation or weight.
        lowest: Smallest values.
        highest: Largest values.
        scale: Scales.
        zero_point: Zero points.
        reduced: Use one bit less.
        optional: Whether the tensor may be absent or float.
    """

    tensor: str
    lowest: tuple[float, ...] = ()
    highest: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    reduced: bool = False
    optional: bool = False


@dataclass(frozen=True)
class ScaleOptions(Checked):
    """How ranges are chosen.

    Attributes:
        activation: Calibration method of activations.
        weight: Calibration method of weights, and of biases with their own scale.
        reduce_range: Use one bit less for weights, for CPUs whose 8-bit multiply-add saturates.
        npu: Change power-of-two scales to what an integer NPU's shifters can do; None keeps them.
        align: Operator types whose quantized inputs and outputs share one scale that covers all of them; from
            `ALIGNABLE_OPERATORS`.
        together: Groups of activations, by name, that share one scale covering all of them if their own scales differ
            by less than a factor of 2; tensors that stay float or have another type are ignored.
        fixed: Scales of results that a target fixes, whatever calibration finds.
        given: Tensors with a given range or scale.
        smallest_range: Width to which narrower ranges of asymmetric tensors are widened.
        zero_point_at_an_end: Asymmetric activations of an unsigned type have their zero point at 0 if no value is
            negative, and else in the middle, as if they were symmetric.
        weigh_shared: Choose the fraction bits that tensors must share on an NPU by what they cost each of them, instead
            of those of the widest tensor.
        keep_levels: A product with a constant positive number has the levels of its input times the number, so that
            it is not rounded a second time; not for power-of-two scales.
    """

    activation: Method = MinMax()
    weight: Method = MinMax()
    reduce_range: bool = False
    npu: NpuLimits | None = None
    align: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    fixed: tuple[FixedScale, ...] = ()
    given: tuple[GivenRange, ...] = ()
    smallest_range: float = 0.0
    zero_point_at_an_end: bool = False
    weigh_shared: bool = False
    keep_levels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for operator in self.align:
            if operator not in ALIGNABLE_OPERATORS:
                raise RecipeError(
                    f"ScaleOptions.align must be among {ALIGNABLE_OPERATORS}, got {operator!r}"
                    f"{nearest_spelling(operator, ALIGNABLE_OPERATORS)}"
                )
        if isinstance(self.weight, MinMax) and self.weight.moving_average is not None:
            raise RecipeError(
                "ScaleOptions.weight must have moving_average=None, because weights have no batches; got "
                f"{self.weight}; use MinMax()"
            )
        if isinstance(self.activation, MinMSE) and self.activation.either_sign:
            raise RecipeError(
                "ScaleOptions.activation must have either_sign=False, because only weights have groups; got "
                f"{self.activation!r}"
            )
        if isinstance(self.weight, MinMSE) and self.weight.after_functions:
            raise RecipeError(
                "ScaleOptions.weight must have after_functions=False, because no function follows a weight; got "
                f"{self.weight}; use MinMSE()"
            )
        if self.reduce_range and not isinstance(self.weight, MinMax | NonOverflow | MinMSE):
            raise RecipeError(
                f"ScaleOptions.reduce_range goes with weight=MinMax(), NonOverflow() or MinMSE(), got {self.weight}"
            )


@dataclass(frozen=True)
class EvaluateOptions(Checked):
    """How the quantized model is compared with the float one.

    Attributes:
        metrics: Names of built-in metrics that compare float and quantized outputs.
        latency_runs: Timed runs of each model, interleaved; 0 measures no latency.
        guard: Samples on which every result is compared with the float model, to warn if it is broken; 0 is off.
    """

    metrics: tuple[str, ...] = ("l2", "cosine", "sqnr")
    latency_runs: int = 0
    guard: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latency_runs < 0:
            raise RecipeError(f"EvaluateOptions.latency_runs must not be negative, got {self.latency_runs!r}")
        if self.guard < 0:
            raise RecipeError(f"EvaluateOptions.guard must not be negative, got {self.guard!r}")
