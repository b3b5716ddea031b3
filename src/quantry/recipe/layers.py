"""Which nodes are quantized, and data types of single layers and tensors that differ from the whole model's."""

from dataclasses import dataclass, field

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.recipe.tensor_spec import Bias, DataType, DerivedBias, FloatBias, OwnBias, PerChannel, PerGroup, TensorSpec


@dataclass(frozen=True)
class Subgraph(Checked):
    """All nodes on a path from one of ``starts`` to one of ``ends``, inclusive.

    Attributes:
        starts: Names of the first nodes.
        ends: Names of the last nodes.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class Selection(Checked):
    """Which nodes are quantized. Empty fields restrict nothing.

    A node is named by its own name or by the name of one of its outputs; ``*`` matches anything. A name or an operator
    type that starts with ``^`` is a regular expression, matched from the start. Every entry must match at least one
    node, because a misspelt exclusion would quantize silently. Only a known operator type in ``operators`` may be
    absent from the model. Names of nodes that preparation folds or removes are followed to what they became, and a note
    says so.

    Attributes:
        input_nodes: Quantization starts at these nodes: every node they depend on stays float.
        output_nodes: Quantization ends at these nodes: every node that depends on them stays float.
        operators: Quantize only these operator types.
        include: Quantize only these nodes.
        exclude: Do not quantize these nodes.
        exclude_operators: Do not quantize these operator types.
        exclude_subgraphs: Do not quantize nodes on these paths.
    """

    input_nodes: tuple[str, ...] = ()
    output_nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_operators: tuple[str, ...] = ()
    exclude_subgraphs: tuple[Subgraph, ...] = ()


MOST_DERIVED_BITS = 24
"""Bits of activation and weight together up to which int32 holds a bias on the product of their scales.

int32 then holds biases up to 2**31 / 2**24 = 128 times the largest product of one input and one weight.
"""
_WIDE = (DataType.INT32, DataType.UINT32)
_FLOATS = (DataType.FLOAT16, DataType.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class LayerTypes(Checked):
    """Data types of some layers; a field left at None keeps the type of the whole model.

    Layers are named as in `Selection`. If several entries name the same layer, each field comes from the last entry
    that sets it. If the readers of a tensor need different types, the tensor is stored in the finest one and a second
    Q/DQ pair converts it for each of the others.

    Attributes:
        match: Names of nodes or of their outputs; a name that starts with ``^`` is a regular expression.
        operators: Operator types; all nodes of these types are included too. Known ones may be absent.
        activation: Type of what the layer reads.
        second_input: Type of its second input if that is computed too, as in the products of attention; None takes
            ``activation``.
        output: Type of what the layer writes; readers without their own type follow it. None leaves it to the readers.
        weight: Type of the constant weight.
        bias: Type of the bias. None keeps the whole model's kind if the layer's types allow it, and else takes the
            nearest, see `nearest_bias`.
        keep_float: Do not quantize the layer.

    Example:
        >>> wide = TensorSpec(DataType.INT16)
        >>> LayerTypes(match=("conv1", "^head/"), activation=wide).operators
        ()
    """

    match: tuple[str, ...] = field(default=(), kw_only=False)
    operators: tuple[str, ...] = ()
    activation: TensorSpec | None = None
    second_input: TensorSpec | None = None
    output: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    keep_float: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.match and not self.operators:
            raise RecipeError("LayerTypes must name layers with match or operators, got neither")
        types = (self.activation, self.second_input, self.output, self.weight, self.bias)
        if self.keep_float == any(entry is not None for entry in types):
            raise RecipeError(
                "LayerTypes must either have keep_float=True or set a type (activation, second_input, output, weight "
                f"or bias); got {'both' if self.keep_float else 'neither'} for {(*self.match, *self.operators)}"
            )
        for name in ("activation", "second_input", "output"):
            check_activation(f"LayerTypes.{name}", getattr(self, name))


@dataclass(frozen=True)
class TensorTypes(Checked):
    """Types of single tensors, for all of their readers unless ``convert`` is given.

    Attributes:
        match: Names of quantized activations, weights or biases; a name that starts with ``^`` is a regular expression.
        spec: Their type.
        convert: The type to which activations are converted, by a second Q/DQ pair, for ``readers``; None for no
            conversion.
        readers: Names of the nodes that read the converted tensor; empty means all of them. If all nodes read it, a
            model output of that name is the converted tensor too.
        optional: Whether the tensors may be absent or float.
    """

    match: tuple[str, ...]
    spec: TensorSpec
    convert: TensorSpec | None = None
    readers: tuple[str, ...] = ()
    optional: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.match:
            raise RecipeError("TensorTypes.match must name tensors, got none")
        check_activation("TensorTypes.convert", self.convert)
        if self.readers and self.convert is None:
            raise RecipeError(f"TensorTypes.readers needs a type to convert to, got only {self.readers}")


def check_activation(path: str, spec: TensorSpec | None) -> None:
    """Reject activations with more than one scale.

    Args:
        path: The field, for the message.
        spec: Its value.

    Raises:
        RecipeError: The specification has one scale per channel or group.
    """
    if spec is not None and isinstance(spec.granularity, PerChannel | PerGroup):
        raise RecipeError(
            f"{path}.granularity must be PerTensor(), because no runtime multiplies with one activation scale per "
            f"channel; got {spec.granularity}; use PerChannel() on the weight"
        )


def can_derive_bias(activation: TensorSpec, weight: TensorSpec) -> bool:
    """Return whether an int32 bias with scale = input scale x weight scale does not overflow.

    Args:
        activation: Type of the layer's input.
        weight: Type of its weight.
    """
    integers = activation.dtype.is_integer and weight.dtype.is_integer
    return integers and activation.dtype.bits + weight.dtype.bits <= MOST_DERIVED_BITS


def _both_bytes(activation: TensorSpec, weight: TensorSpec) -> bool:
    return all(spec.dtype.is_integer and spec.dtype.bits == 8 for spec in (activation, weight))


def nearest_bias(bias: Bias, activation: TensorSpec, weight: TensorSpec) -> Bias:
    """Return the bias of a layer whose types differ from the whole model's.

    Args:
        bias: The bias of the whole model.
        activation: Type of the layer's input.
        weight: Type of its weight.

    Returns:
        ``bias`` if it fits the types. Else: with two 8-bit types a 32-bit bias is derived; a derived bias becomes
        int32 with its own scale if the product of scales is too fine, and float16 or bfloat16 if a type is one of them.
    """
    if isinstance(bias, OwnBias) and bias.spec.dtype in _WIDE and _both_bytes(activation, weight):
        # onnxruntime's 8-bit kernels assume that a 32-bit bias is on the accumulator's grid.
        return DerivedBias()
    if not isinstance(bias, DerivedBias) or can_derive_bias(activation, weight):
        return bias
    if activation.dtype.is_integer and weight.dtype.is_integer:
        return OwnBias(TensorSpec(DataType.INT32, scale=weight.scale))
    narrow = [spec.dtype for spec in (weight, activation) if spec.dtype in _FLOATS]
    return OwnBias(TensorSpec(narrow[0])) if narrow else FloatBias()
