"""What quantry knows about each ONNX operator: one row of facts per operator type.

Every stage reads this table instead of naming operators itself. To add an operator, add a row. It needs a rule in
`quantry.plan.rules` only if its facts do not say how to quantize it, and a function in `quantry.execute.interpreter`
only if no function of torch computes it. ``tests/execute/test_execute_operators.py`` runs every row that torch can
compute against onnxruntime and fails for a row without cases.

This module imports nothing but the standard library, so recipes can read it without loading numpy or onnx.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

STANDARD_DOMAINS = ("", "ai.onnx")
"""Both names of the standard operator set."""

KNOWN_DOMAINS = (*STANDARD_DOMAINS, "com.microsoft")
"""Domains whose operators have rows here: onnxruntime's own domain repeats some names with the same meaning."""


class Family(Enum):
    """What kind of operator it is; each operator has one family."""

    CONVOLUTION = "convolution"
    MATRIX = "matrix product"
    ACTIVATION = "activation function"
    ARITHMETIC = "sum, product or extreme of tensors, element by element"
    FUNCTION = "another function of single elements"
    COMPARISON = "comparison or boolean function"
    MOVEMENT = "copies of the first input's values"
    LOOKUP = "values picked by computed indices"
    JOIN = "several tensors joined into one"
    PADDING = "values added around a tensor"
    RESIZE = "interpolation"
    SELECTION = "largest or smallest values of a window or of axes"
    AVERAGE = "means over a window or over axes"
    REDUCTION = "other reductions, and running sums"
    SOFTMAX = "softmax along an axis"
    INDEX = "positions of the largest or smallest values"
    NORMALIZATION = "normalization"
    RECURRENT = "recurrent layer"
    CONTROL_FLOW = "operator with graphs inside"
    RANDOM = "random numbers, or a function that may use them"
    SHAPE = "shapes, and tensors made from shapes"
    OTHER = "anything else"


class Copies(Enum):
    """How often the values of the first input occur in the output."""

    EACH_ONCE = "each value once, in another order or shape"
    SOME = "some values not at all, or several times"


class Masking(Enum):
    """What the operator does with a constant that stands for infinity, such as an attention mask."""

    CARRIES = "the output holds the mask as well"
    SCALES = "the output holds the mask as well, but a constant factor is never a mask"
    LIMITS = "a bound: the output is an ordinary tensor"


@dataclass(frozen=True)
class Weight:
    """Where a linear operator has its constants.

    Attributes:
        output_axis: Axis of the weight that counts output channels; of Gemm, unless the weight is transposed.
        bias: Index of the bias among the inputs, or None if the operator has none.
        data_axis: Axis of the data that counts channels, before and after the operator.
        input: Index of the weight among the inputs.
    """

    output_axis: int
    bias: int | None
    data_axis: int
    input: int = 1


@dataclass(frozen=True)
class Npu:
    """How AMD's integer NPU computes the operator.

    Attributes:
        moves: Whether it only moves integers. Such a node may stay float in front of an output of the model.
        weighted: Whether the positions of its weight and bias are limited by shifts of the accumulator.
        factor: Whether the NPU computes it with a rounded reciprocal, so that a factor follows in the simulation.
        align: The switch of the scale stage that gives its inputs and output one position; empty if there is none.
    """

    moves: bool = False
    weighted: bool = False
    factor: bool = False
    align: str = ""


@dataclass(frozen=True)
class Scalar:
    """A function of single elements whose numpy formula is in `quantry.numerics.scalar_function` under the same name.

    Attributes:
        parameters: Attributes that are parameters of the function, in order, with the defaults of the ONNX standard.
    """

    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Operator:
    """The facts of one operator type.

    Attributes:
        name: The operator type.
        family: What kind of operator it is.
        torch: The function that computes it in torch: ``torch.NAME``, ``torch.nn.functional.NAME``, or ``MODULE.NAME``
            in `quantry.execute.interpreter`. Empty if torch does not compute it.
        settings: Names of the inputs that say how to compute (sizes, axes, bounds) rather than what, in order. They
            follow the data inputs. Each has the name that older opsets give to the attribute it replaced.
        data_inputs: Number of inputs in front of the settings; only read where there are settings.
        weight: Where a linear operator has its weight; None for all others.
        learned: Indices of inputs that hold learned parameters when they are constant.
        exact: Whether it rounds at most once, so that all libraries compute the same bits; False for movements.
        operands: Number of tensors that it combines element by element (2 also for variadic operators); 0 if it does
            not work element by element.
        scalar: Its formula for single elements, which holds if only one operand is not a constant number.
        homogeneous: Whether ``f(s * x) = s * f(x)`` for every ``s > 0``, at least for suitable settings. None where the
            question does not arise, because it combines computed tensors or changes what the channels are.
        pools: Whether it runs over the spatial axes of ``[N, C, ...]``.
        across_channels: Whether it normalizes the channels of each position together, as transformers do.
        copies: How often values of the first input occur in the output; None if it computes new values.
        wide_range: Whether results span orders of magnitude, which integers of a few bits cannot represent.
        masking: What it does with masks; None if a mask is not expected there.
        fuses: Whether integer kernels apply an activation function to its accumulator before rounding.
        fusible: Whether integer kernels apply it to the accumulator of the operator before it.
        npu: How an NPU computes it; None for an operator that runs elsewhere.
        alignable: Whether `ScaleOptions.align` may give its inputs and its output one scale.
        tunable: Whether layer-wise tuning can change its constants.
        tuned_after: Whether layer-wise tuning compares results after this function, as AMD Quark does.
        integer_kernel: Whether onnxruntime's kernel of the same name also runs on 8-bit integers.
        moved_by_runtime: Whether onnxruntime 1.27 to 1.31 move an int8 DequantizeLinear from its input to its output.
        foldable: Whether the reference implementation in the onnx package is trusted for constant folding.
    """

    name: str
    family: Family
    torch: str = ""
    settings: tuple[str, ...] = ()
    data_inputs: int = 1
    weight: Weight | None = None
    learned: tuple[int, ...] = ()
    operands: int = 0
    exact: bool = False
    scalar: Scalar | None = None
    homogeneous: bool | None = None
    pools: bool = False
    across_channels: bool = False
    copies: Copies | None = None
    wide_range: bool = False
    masking: Masking | None = None
    fuses: bool = False
    fusible: bool = False
    npu: Npu | None = None
    alignable: bool = False
    tunable: bool = False
    tuned_after: bool = False
    integer_kernel: bool = False
    moved_by_runtime: bool = False
    foldable: bool = False
    setting_at: Mapping[int, str] = field(init=False, repr=False, compare=False)
    """Index of each setting among the inputs, with its name."""

    def __post_init__(self) -> None:
        named = {self.data_inputs + index: name for index, name in enumerate(self.settings)}
        object.__setattr__(self, "setting_at", MappingProxyType(named))


# fmt: off
_F = Family
_ONCE, _SOME = Copies.EACH_ONCE, Copies.SOME
_CARRIES, _LIMITS = Masking.CARRIES, Masking.LIMITS
_AXES = ("axes",)
_ALPHA = Scalar((("alpha", 1.0),))
_SELU = Scalar((("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)))
_NPU, _NPU_MOVES, _NPU_POOL = Npu(), Npu(moves=True), Npu(align="align_pool")

_ROWS: tuple[Operator, ...] = (
    # Linear layers. Conv weights are [C_out, C_in / group, ...], ConvTranspose weights [C_in, C_out / group, ...].
    Operator("Conv", _F.CONVOLUTION, "linear.conv", weight=Weight(0, 2, 1), learned=(1, 2), fuses=True,
             npu=Npu(weighted=True), tunable=True),
    Operator("ConvTranspose", _F.CONVOLUTION, "linear.conv_transpose", weight=Weight(1, 2, 1), learned=(1, 2),
             fuses=True, npu=_NPU, tunable=True),
    Operator("Gemm", _F.MATRIX, "linear.gemm", weight=Weight(1, 2, 1), learned=(0, 1, 2), fuses=True,
             npu=Npu(weighted=True), tunable=True, foldable=True),
    Operator("MatMul", _F.MATRIX, "torch.matmul", weight=Weight(-1, None, -1), learned=(0, 1), fuses=True, npu=_NPU,
             tunable=True, foldable=True),
    Operator("Einsum", _F.OTHER, "linear.einsum"),

    # Activation functions.
    Operator("Relu", _F.ACTIVATION, "torch.relu", operands=1, scalar=Scalar(), homogeneous=True, fusible=True,
             npu=_NPU, tuned_after=True, foldable=True, exact=True),
    Operator("Clip", _F.ACTIVATION, "elementwise.clip", ("min", "max"), operands=1, homogeneous=True,
             masking=_LIMITS, fusible=True, npu=_NPU, tuned_after=True, foldable=True, exact=True),
    Operator("LeakyRelu", _F.ACTIVATION, "elementwise.leaky_relu", operands=1, scalar=Scalar((("alpha", 0.01),)),
             homogeneous=True, fusible=True, npu=_NPU, tuned_after=True, exact=True),
    Operator("PRelu", _F.ACTIVATION, "elementwise.prelu", learned=(1,), operands=2, scalar=Scalar(), homogeneous=True,
             fusible=True, npu=_NPU, tuned_after=True, exact=True),
    Operator("Elu", _F.ACTIVATION, "elementwise.elu", operands=1, scalar=_ALPHA, homogeneous=False),
    Operator("Selu", _F.ACTIVATION, "elementwise.selu", operands=1, scalar=_SELU, homogeneous=False),
    Operator("Celu", _F.ACTIVATION, "elementwise.celu", operands=1, scalar=_ALPHA, homogeneous=False),
    Operator("ThresholdedRelu", _F.ACTIVATION, "elementwise.thresholded_relu", operands=1, homogeneous=False,
             exact=True),
    Operator("Shrink", _F.ACTIVATION, "elementwise.shrink", operands=1, homogeneous=False),
    Operator("Sigmoid", _F.ACTIVATION, "elementwise.sigmoid", operands=1, scalar=Scalar(), homogeneous=False, npu=_NPU,
             tuned_after=True, foldable=True),
    Operator("HardSigmoid", _F.ACTIVATION, "elementwise.hard_sigmoid", operands=1,
             scalar=Scalar((("alpha", 0.2), ("beta", 0.5))), homogeneous=False, npu=Npu(factor=True)),
    Operator("HardSwish", _F.ACTIVATION, "torch.nn.functional.hardswish", operands=1, scalar=Scalar(),
             homogeneous=False, npu=_NPU, tuned_after=True),
    Operator("Swish", _F.ACTIVATION, operands=1, homogeneous=False),
    Operator("Mish", _F.ACTIVATION, "torch.nn.functional.mish", operands=1, scalar=Scalar(), homogeneous=False),
    Operator("Tanh", _F.ACTIVATION, "torch.tanh", operands=1, scalar=Scalar(), homogeneous=False, npu=_NPU,
             tuned_after=True, foldable=True),
    Operator("Softplus", _F.ACTIVATION, "torch.nn.functional.softplus", operands=1, scalar=Scalar(),
             homogeneous=False),
    Operator("Softsign", _F.ACTIVATION, "torch.nn.functional.softsign", operands=1, scalar=Scalar(),
             homogeneous=False),
    Operator("Gelu", _F.ACTIVATION, "elementwise.gelu", operands=1, scalar=Scalar(), homogeneous=False,
             tuned_after=True),
    Operator("FastGelu", _F.ACTIVATION, homogeneous=False),
    Operator("QuickGelu", _F.ACTIVATION, operands=1, homogeneous=False),
    Operator("BiasGelu", _F.ACTIVATION, homogeneous=False),
    Operator("Erf", _F.ACTIVATION, "torch.erf", operands=1, scalar=Scalar(), homogeneous=False, foldable=True),
    Operator("Abs", _F.ACTIVATION, "torch.abs", operands=1, scalar=Scalar(), homogeneous=True, foldable=True,
             exact=True),
    Operator("Neg", _F.ACTIVATION, "torch.neg", operands=1, scalar=Scalar(), homogeneous=True, foldable=True,
             exact=True),

    # Arithmetic between tensors.
    Operator("Add", _F.ARITHMETIC, "torch.add", operands=2, scalar=Scalar(), masking=_CARRIES, fuses=True, npu=_NPU,
             alignable=True, foldable=True, exact=True),
    Operator("Sub", _F.ARITHMETIC, "torch.sub", operands=2, scalar=Scalar(), masking=_CARRIES, npu=_NPU,
             foldable=True, exact=True),
    Operator("Mul", _F.ARITHMETIC, "torch.mul", operands=2, scalar=Scalar(), masking=Masking.SCALES, npu=_NPU,
             foldable=True, exact=True),
    Operator("Min", _F.ARITHMETIC, "elementwise.minimum", operands=2, scalar=Scalar(), masking=_LIMITS, npu=_NPU,
             foldable=True, exact=True),
    Operator("Max", _F.ARITHMETIC, "elementwise.maximum", operands=2, scalar=Scalar(), masking=_LIMITS, npu=_NPU,
             foldable=True, exact=True),
    Operator("Sum", _F.ARITHMETIC, "elementwise.total", operands=2, masking=_CARRIES, foldable=True),
    Operator("Mean", _F.ARITHMETIC, "elementwise.mean", operands=2, foldable=True),

    # Other functions of single elements.
    Operator("Div", _F.FUNCTION, "elementwise.divide", operands=2, scalar=Scalar(), foldable=True, exact=True),
    Operator("Pow", _F.FUNCTION, "elementwise.power", operands=2, scalar=Scalar(), homogeneous=False,
             wide_range=True, foldable=True),
    Operator("Mod", _F.FUNCTION, "elementwise.modulo", operands=2, foldable=True),
    Operator("Exp", _F.FUNCTION, "torch.exp", operands=1, scalar=Scalar(), homogeneous=False, wide_range=True,
             foldable=True),
    Operator("Log", _F.FUNCTION, "torch.log", operands=1, homogeneous=False, wide_range=True, foldable=True),
    Operator("Sqrt", _F.FUNCTION, "torch.sqrt", operands=1, homogeneous=False, wide_range=True, foldable=True,
             exact=True),
    Operator("Reciprocal", _F.FUNCTION, "torch.reciprocal", operands=1, homogeneous=False, wide_range=True,
             foldable=True),
    *(Operator(k, _F.FUNCTION, f"torch.{k.lower()}", operands=1, homogeneous=False, foldable=True, exact=True)
      for k in ("Sign", "Floor", "Ceil", "Round")),
    *(Operator(k, _F.FUNCTION, f"torch.{k.lower()}", operands=1, homogeneous=False, foldable=True)
      for k in ("Sin", "Cos")),
    *(Operator(k, _F.FUNCTION, f"torch.{k.lower()}", operands=1, homogeneous=False, wide_range=True)
      for k in ("Tan", "Sinh", "Cosh")),
    *(Operator(name, _F.FUNCTION, f"torch.{name.lower()}", operands=1, homogeneous=False)
      for name in ("Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh")),
    Operator("Where", _F.FUNCTION, "torch.where", masking=_CARRIES, foldable=True, exact=True),
    Operator("Cast", _F.FUNCTION, "elementwise.cast", masking=_CARRIES, foldable=True, exact=True),
    Operator("CastLike", _F.FUNCTION, "elementwise.cast_like", foldable=True, exact=True),

    # Comparisons and boolean functions.
    Operator("Equal", _F.COMPARISON, "torch.eq", foldable=True),
    Operator("Greater", _F.COMPARISON, "torch.gt", foldable=True),
    Operator("GreaterOrEqual", _F.COMPARISON, "torch.ge", foldable=True),
    Operator("Less", _F.COMPARISON, "torch.lt", foldable=True),
    Operator("LessOrEqual", _F.COMPARISON, "torch.le", foldable=True),
    *(Operator(k, _F.COMPARISON, f"torch.logical_{k.lower()}", foldable=True) for k in ("And", "Or", "Xor", "Not")),
    Operator("IsInf", _F.COMPARISON, "elementwise.is_infinite", foldable=True),
    Operator("IsNaN", _F.COMPARISON, "torch.isnan", foldable=True),
    *(Operator(f"Bitwise{k}", _F.COMPARISON, f"torch.bitwise_{k.lower()}") for k in ("And", "Or", "Xor", "Not")),
    Operator("BitShift", _F.COMPARISON, "elementwise.shifted"),

    # Copies of values.
    Operator("Reshape", _F.MOVEMENT, "movement.reshape", ("shape",), homogeneous=True, copies=_ONCE, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Transpose", _F.MOVEMENT, "movement.transpose", homogeneous=True, copies=_ONCE, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Squeeze", _F.MOVEMENT, "movement.squeeze", _AXES, homogeneous=True, copies=_ONCE, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Unsqueeze", _F.MOVEMENT, "movement.unsqueeze", _AXES, homogeneous=True, copies=_ONCE, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Flatten", _F.MOVEMENT, "movement.flatten", homogeneous=True, copies=_ONCE, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Slice", _F.MOVEMENT, "movement.slice_", ("starts", "ends", "axes", "steps"), homogeneous=True,
             copies=_SOME, masking=_CARRIES, npu=Npu(moves=True, align="align_slice"), alignable=True,
             integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Split", _F.MOVEMENT, "movement.split", ("split",), homogeneous=True, copies=_SOME, masking=_CARRIES,
             npu=_NPU_MOVES, integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("DepthToSpace", _F.MOVEMENT, "movement.depth_to_space", homogeneous=True, copies=_ONCE,
             masking=_CARRIES),
    Operator("SpaceToDepth", _F.MOVEMENT, "movement.space_to_depth", homogeneous=True, copies=_ONCE,
             masking=_CARRIES),
    Operator("Expand", _F.MOVEMENT, "movement.expand", ("shape",), homogeneous=True, copies=_SOME, masking=_CARRIES,
             integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Tile", _F.MOVEMENT, "movement.tile", ("repeats",), homogeneous=True, copies=_SOME, masking=_CARRIES,
             integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("Identity", _F.MOVEMENT, "movement.identity", operands=1, homogeneous=True, copies=_ONCE,
             masking=_CARRIES, integer_kernel=True, foldable=True),
    Operator("Trilu", _F.OTHER, "indexing.triangle", ("k",), foldable=True, exact=True),
    Operator("Gather", _F.LOOKUP, "movement.gather", homogeneous=True, copies=_SOME, masking=_CARRIES,
             integer_kernel=True, moved_by_runtime=True, foldable=True),
    Operator("GatherElements", _F.LOOKUP, "indexing.gather_elements", homogeneous=True, copies=_SOME,
             masking=_CARRIES, integer_kernel=True, foldable=True),
    Operator("GatherND", _F.LOOKUP, "indexing.gather_nd", homogeneous=True, copies=_SOME, masking=_CARRIES,
             integer_kernel=True, foldable=True),
    Operator("ScatterElements", _F.LOOKUP, "indexing.scatter_elements", foldable=True),
    Operator("ScatterND", _F.LOOKUP, "indexing.scatter_nd", foldable=True),
    Operator("Concat", _F.JOIN, "movement.concat", masking=_CARRIES, npu=Npu(moves=True, align="align_concat"),
             alignable=True, foldable=True),
    Operator("Pad", _F.PADDING, "movement.pad", ("pads", "value", "axes"), homogeneous=True, masking=_CARRIES,
             npu=Npu(moves=True, align="align_pad"), alignable=True, foldable=True),
    Operator("Resize", _F.RESIZE, "resize.resize", ("roi", "scales", "sizes"), homogeneous=True, npu=_NPU_MOVES,
             alignable=True, integer_kernel=True),
    Operator("Upsample", _F.RESIZE),
    Operator("AffineGrid", _F.OTHER),
    Operator("RoiAlign", _F.OTHER, homogeneous=True),
    Operator("MaxRoiPool", _F.OTHER, homogeneous=True),
    Operator("ReverseSequence", _F.OTHER, homogeneous=True),
    Operator("Compress", _F.OTHER, "indexing.compress", homogeneous=True),
    Operator("Unique", _F.OTHER, "indexing.unique"),
    Operator("Det", _F.OTHER, "torch.linalg.det", wide_range=True),
    Operator("STFT", _F.OTHER, "spectral.short_time_transform", ("frame_step", "window", "frame_length")),
    Operator("DFT", _F.OTHER, "spectral.transform", ("dft_length", "axis")),

    # Pooling, reductions and softmax.
    Operator("MaxPool", _F.SELECTION, "reduction.max_pool", homogeneous=True, pools=True, fuses=True, npu=_NPU_POOL,
             alignable=True, integer_kernel=True, moved_by_runtime=True),
    Operator("GlobalMaxPool", _F.SELECTION, "reduction.global_max_pool", homogeneous=True, pools=True),
    Operator("ReduceMax", _F.SELECTION, "reduction.reduce_max", _AXES, homogeneous=True, integer_kernel=True,
             foldable=True),
    Operator("ReduceMin", _F.SELECTION, "reduction.reduce_min", _AXES, homogeneous=True, integer_kernel=True,
             foldable=True),
    Operator("AveragePool", _F.AVERAGE, "reduction.average_pool", homogeneous=True, pools=True, fuses=True,
             npu=Npu(factor=True, align="align_pool"), alignable=True),
    Operator("GlobalAveragePool", _F.AVERAGE, "reduction.global_average_pool", homogeneous=True, pools=True,
             fuses=True, npu=Npu(factor=True, align="align_pool"), alignable=True),
    Operator("ReduceMean", _F.AVERAGE, "reduction.reduce_mean", _AXES, homogeneous=True, npu=Npu(factor=True),
             foldable=True),
    Operator("LpPool", _F.REDUCTION, "reduction.lp_pool", homogeneous=True, pools=True),
    Operator("GlobalLpPool", _F.REDUCTION, "reduction.global_lp_pool", homogeneous=True, pools=True),
    Operator("ReduceSum", _F.REDUCTION, "reduction.reduce_sum", _AXES, homogeneous=True, wide_range=True,
             foldable=True),
    Operator("ReduceL1", _F.REDUCTION, "reduction.reduce_l1", _AXES, homogeneous=True, wide_range=True),
    Operator("ReduceL2", _F.REDUCTION, "reduction.reduce_l2", _AXES, homogeneous=True, wide_range=True),
    Operator("ReduceProd", _F.REDUCTION, "reduction.reduce_product", _AXES, homogeneous=False, wide_range=True,
             foldable=True),
    Operator("ReduceSumSquare", _F.REDUCTION, "reduction.reduce_sum_square", _AXES, homogeneous=False,
             wide_range=True),
    Operator("ReduceLogSum", _F.REDUCTION, "reduction.reduce_log_sum", _AXES, homogeneous=False, wide_range=True),
    Operator("ReduceLogSumExp", _F.REDUCTION, "reduction.reduce_log_sum_exp", _AXES, homogeneous=False,
             wide_range=True),
    Operator("CumSum", _F.REDUCTION, "indexing.cumulative_sum", ("axis",), wide_range=True, foldable=True),
    Operator("Softmax", _F.SOFTMAX, "reduction.softmax", homogeneous=False, npu=_NPU, tuned_after=True,
             foldable=True),
    Operator("LogSoftmax", _F.SOFTMAX, "reduction.log_softmax", homogeneous=False, wide_range=True),
    Operator("Hardmax", _F.OTHER, "reduction.hard_max", exact=True),
    Operator("ArgMax", _F.INDEX, "indexing.arg_max", foldable=True),
    Operator("ArgMin", _F.INDEX, "indexing.arg_min", foldable=True),
    Operator("TopK", _F.OTHER, "indexing.top_k", ("k",), foldable=True, exact=True),
    Operator("NonMaxSuppression", _F.OTHER, "indexing.suppress", exact=True),
    Operator("GridSample", _F.OTHER, "sampling.grid_sample"),
    Operator("Col2Im", _F.OTHER, "sampling.column_to_image", ("image_shape", "block_shape"), homogeneous=True),

    # Normalizations.
    Operator("BatchNormalization", _F.NORMALIZATION, "normalization.batch_norm", learned=(1, 2), homogeneous=False,
             fuses=True),
    Operator("InstanceNormalization", _F.NORMALIZATION, "normalization.instance_norm", learned=(1, 2),
             homogeneous=False, fuses=True, tunable=True),
    Operator("LayerNormalization", _F.NORMALIZATION, "normalization.layer_norm", learned=(1, 2), homogeneous=False,
             across_channels=True, tunable=True),
    Operator("GroupNormalization", _F.NORMALIZATION, "normalization.group_norm", learned=(1, 2), homogeneous=False),
    Operator("RMSNormalization", _F.NORMALIZATION, learned=(1,), homogeneous=False, across_channels=True),
    Operator("SimplifiedLayerNormalization", _F.NORMALIZATION, learned=(1,), homogeneous=False,
             across_channels=True),
    Operator("LpNormalization", _F.NORMALIZATION, "normalization.lp_norm", homogeneous=False),
    Operator("LRN", _F.OTHER, "normalization.local_response_norm", homogeneous=False),

    # Operators of onnxruntime that language models use; the skip connection's sum is another output of a Skip*.
    Operator("SkipLayerNormalization", _F.NORMALIZATION, homogeneous=False),
    Operator("SkipSimplifiedLayerNormalization", _F.NORMALIZATION, homogeneous=False),
    Operator("EmbedLayerNormalization", _F.NORMALIZATION, homogeneous=False),
    Operator("GroupNorm", _F.NORMALIZATION, homogeneous=False),
    Operator("SkipGroupNorm", _F.NORMALIZATION, homogeneous=False),
    Operator("RotaryEmbedding", _F.OTHER, homogeneous=True),
    Operator("Attention", _F.OTHER, homogeneous=False),
    Operator("MultiHeadAttention", _F.OTHER, homogeneous=False),
    Operator("GroupQueryAttention", _F.OTHER, homogeneous=False),
    Operator("PagedAttention", _F.OTHER, homogeneous=False),
    Operator("SparseAttention", _F.OTHER, homogeneous=False),
    Operator("PackedMultiHeadAttention", _F.OTHER, homogeneous=False),
    Operator("DecoderMaskedMultiHeadAttention", _F.OTHER, homogeneous=False),
    Operator("FusedMatMul", _F.OTHER),
    Operator("FusedConv", _F.OTHER),
    Operator("FusedGemm", _F.OTHER),
    Operator("MoE", _F.OTHER, homogeneous=False),

    # Operators with state or graphs inside.
    Operator("LSTM", _F.RECURRENT, "recurrent.lstm", learned=(1, 2, 3)),
    Operator("GRU", _F.RECURRENT, "recurrent.gru", learned=(1, 2, 3)),
    Operator("RNN", _F.RECURRENT, "recurrent.rnn", learned=(1, 2, 3)),
    *(Operator(name, _F.CONTROL_FLOW) for name in ("If", "Loop", "Scan", "SequenceMap")),

    # Random numbers. Dropout copies its input in inference, but draws numbers in training mode.
    Operator("Dropout", _F.RANDOM, "movement.dropout"),
    *(Operator(name, _F.RANDOM) for name in ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike",
                                             "RandomUniform", "RandomUniformLike")),

    # Shapes, and tensors made from shapes.
    Operator("Shape", _F.SHAPE, "movement.shape", foldable=True),
    Operator("Size", _F.SHAPE, "movement.size", foldable=True),
    Operator("Constant", _F.SHAPE, "movement.constant"),
    Operator("ConstantOfShape", _F.SHAPE, "movement.constant_of_shape", ("shape",), data_inputs=0, foldable=True),
    Operator("Range", _F.SHAPE, "movement.range_", foldable=True),
    Operator("EyeLike", _F.SHAPE, "movement.eye_like", foldable=True),
    Operator("OneHot", _F.SHAPE, "indexing.one_hot", foldable=True),
    Operator("NonZero", _F.SHAPE, "indexing.non_zero", foldable=True),
)
# fmt: on

OPERATORS: Mapping[str, Operator] = MappingProxyType({row.name: row for row in _ROWS})
"""The rows by operator type."""

_UNKNOWN = Operator("", Family.OTHER)


def facts(node: "ir.Node") -> Operator:
    """Return the facts of a node's operator; those of an operator that nothing is known about if it has no row."""
    return OPERATORS.get(node.op_type, _UNKNOWN) if node.domain in KNOWN_DOMAINS else _UNKNOWN


def operators_where(holds: Callable[[Operator], object]) -> tuple[str, ...]:
    """Return the operator types whose facts satisfy a condition, in the order of the table.

    Example:
        >>> operators_where(lambda row: row.weight)
        ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')
    """
    return tuple(row.name for row in OPERATORS.values() if holds(row))


def of_family(*families: Family) -> tuple[str, ...]:
    """Return the operator types of some families, in the order of the table."""
    return operators_where(lambda row: row.family in families)


LINEAR = operators_where(lambda row: row.weight)
"""Operators that multiply their input with a weight: ``Conv``, ``ConvTranspose``, ``Gemm`` and ``MatMul``."""

CONVOLUTIONS = of_family(Family.CONVOLUTION)
MATRIX_PRODUCTS = of_family(Family.MATRIX)

BIASED = operators_where(lambda row: row.weight and row.weight.bias is not None)
"""Linear operators with an input for a bias."""

FUSIBLE = operators_where(lambda row: row.fusible)
"""Activation functions that integer kernels apply to the accumulator of the operator before them."""


ALIGNED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        switch: tuple(row.name for row in OPERATORS.values() if row.npu and row.npu.align == switch)
        for switch in ("align_concat", "align_pool", "align_pad", "align_slice")
    }
)
"""Switches that give the inputs and outputs of some operators one position on the NPU, in the order they apply."""


def output_channel_axis(node: "ir.Node", rank: int) -> int:
    """Return the axis of a linear operator's weight that counts output channels.

    Args:
        node: A node of `LINEAR`.
        rank: Number of axes of the weight.
    """
    weight = OPERATORS[node.op_type].weight
    assert weight is not None
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0:
        return 0
    return weight.output_axis % rank
