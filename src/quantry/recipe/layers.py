"""Which nodes of the graph are quantized at all.

Types of single layers and tensors, where they differ from those of the whole model.
"""

from dataclasses import dataclass, field

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.recipe.tensor_spec import Bias, DataType, DerivedBias, FloatBias, OwnBias, PerChannel, PerGroup, TensorSpec


@dataclass(frozen=True)
class Subgraph(Checked):
    """All nodes on a path from one of ``starts`` to one of ``ends``, both included.

    Attributes:
        starts: Names of the first nodes.
        ends: Names of the last nodes.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class Selection(Checked):
    """Where quantization applies. Empty means no restriction.

    A node is named by its own name or by the name of one of its outputs, in which ``*`` stands for anything. A name or
    an operator type that starts with ``^`` is a regular expression that must match from the start. Every entry must
    match at least one node; an entry that matches nothing is an error, because a misspelt exclusion would quantize
    silently. Only a type in ``operators`` that quantry knows may be absent.

    Attributes:
        input_nodes: Quantization starts at these nodes: every node they depend on stays float.
        output_nodes: Quantization ends at these nodes: every node that depends on them stays float.
        operators: Only these operator types.
        include: Only these nodes.
        exclude: Not these nodes.
        exclude_operators: Not these operator types.
        exclude_subgraphs: Nothing on the paths these name.
    """

    input_nodes: tuple[str, ...] = ()
    output_nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_operators: tuple[str, ...] = ()
    exclude_subgraphs: tuple[Subgraph, ...] = ()


MOST_DERIVED_BITS = 24
_WIDE = (DataType.INT32, DataType.UINT32)
_FLOATS = (DataType.FLOAT16, DataType.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class LayerTypes(Checked):
    """What some layers compute with; a field left at None keeps the type of the whole model.

    Layers are named as in `Selection`. Where several entries name the same layer, each field is taken from the last one
    that sets it. A tensor that the layer does not share is simply of its type; where the readers of a tensor want
    different types, the tensor is stored in the finest of these and converted, by a Q/DQ pair of their own, for the
    others.

    Attributes:
        match: Names of nodes or of their outputs; one that starts with ``^`` is a regular expression.
        operators: Operator types; all nodes of these are meant as well.
        activation: What the layer reads.
        output: What the layer writes; readers without a type of their own follow. None leaves it to the readers.
        weight: What its constant weight becomes.
        bias: What its bias becomes. None keeps the kind of the whole model where the layer's types allow it; a bias
            that was to be derived becomes int32 with a scale of its own beside more than 24 bits, and float16 or
            bfloat16 beside these; one of 32 bits with a scale of its own is derived beside bytes.
        keep_float: Leave the layer float.

    Example:
        >>> wide = TensorSpec(DataType.INT16)
        >>> LayerTypes(match=("conv1", "^head/"), activation=wide).operators
        ()
    """

    match: tuple[str, ...] = field(default=(), kw_only=False)
    operators: tuple[str, ...] = ()
    activation: TensorSpec | None = None
    output: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    keep_float: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.match and not self.operators:
            raise RecipeError("LayerTypes must name layers in match or operators, got neither")
        types = (self.activation, self.output, self.weight, self.bias)
        if self.keep_float == any(entry is not None for entry in types):
            raise RecipeError(
                "LayerTypes must either keep layers float or give them a type: activation, output, weight or bias; "
                f"got {'both' if self.keep_float else 'neither'} for {(*self.match, *self.operators)}"
            )
        for name in ("activation", "output"):
            check_activation(f"LayerTypes.{name}", getattr(self, name))


@dataclass(frozen=True)
class TensorTypes(Checked):
    """What single tensors become, whoever reads and writes them.

    Attributes:
        match: Names of quantized activations, weights or biases; one that starts with ``^`` is a regular expression.
        spec: What they become.
    """

    match: tuple[str, ...]
    spec: TensorSpec

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.match:
            raise RecipeError("TensorTypes.match must name tensors, got none")


def check_activation(where: str, spec: TensorSpec | None) -> None:
    """Refuse what no activation can be.

    Args:
        where: The field, for the message.
        spec: What it was given.

    Raises:
        RecipeError: There would be one scale for each channel.
    """
    if spec is not None and isinstance(spec.granularity, PerChannel | PerGroup):
        raise RecipeError(
            f"{where} must be PerTensor(): no runtime multiplies with one activation scale for each channel; use "
            "PerChannel() on the weight"
        )


def can_derive_bias(activation: TensorSpec, weight: TensorSpec) -> bool:
    """Whether input scale x weight scale is a grid on which int32 holds a bias.

    Args:
        activation: What the layer reads.
        weight: Its weight.
    """
    integers = activation.dtype.is_integer and weight.dtype.is_integer
    return integers and activation.dtype.bits + weight.dtype.bits <= MOST_DERIVED_BITS


def _both_bytes(activation: TensorSpec, weight: TensorSpec) -> bool:
    return all(spec.dtype.is_integer and spec.dtype.bits == 8 for spec in (activation, weight))


def nearest_bias(wanted: Bias, activation: TensorSpec, weight: TensorSpec) -> Bias:
    """Return the bias a layer has where only the whole model's wish is known.

    Args:
        wanted: The bias of the whole model.
        activation: What the layer reads.
        weight: Its weight.

    Returns:
        What was wanted, or where it does not go with the types, the nearest that does.
    """
    if isinstance(wanted, OwnBias) and wanted.spec.dtype in _WIDE and _both_bytes(activation, weight):
        # Integer kernels take 32 bits beside bytes to be on the accumulator's grid.
        return DerivedBias()
    if not isinstance(wanted, DerivedBias) or can_derive_bias(activation, weight):
        return wanted
    if activation.dtype.is_integer and weight.dtype.is_integer:
        return OwnBias(TensorSpec(DataType.INT32, scale=weight.scale))
    narrow = [spec.dtype for spec in (weight, activation) if spec.dtype in _FLOATS]
    return OwnBias(TensorSpec(narrow[0])) if narrow else FloatBias()
