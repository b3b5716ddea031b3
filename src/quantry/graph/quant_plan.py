"""The plan: which tensor is quantized to what, which share, and which nodes stay float and why."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from quantry.memo import Blob
from quantry.recipe import TensorSpec, decode, encode


@dataclass(frozen=True)
class OwnRange:
    """The tensor is calibrated by itself."""

    spec: TensorSpec


@dataclass(frozen=True)
class FixedRange:
    """The range is known without looking, such as [0, 1] of a Softmax."""

    spec: TensorSpec
    low: float
    high: float


@dataclass(frozen=True)
class SharedRange:
    """The tensor has the parameters of another, which has a range of its own.

    Attributes:
        source: Name of that other tensor; never itself a `SharedRange`.
    """

    source: str


ActivationPlan = OwnRange | FixedRange | SharedRange


@dataclass(frozen=True)
class Conversion:
    """A further pair behind a quantized tensor, for readers that want another type.

    Its parameters are kept under the conversion's own name.

    Attributes:
        tensor: Name of the tensor.
        spec: Type and scale that its readers want.
        readers: Names of the nodes that read it; other readers read the tensor as it is planned.
    """

    tensor: str
    spec: TensorSpec
    readers: tuple[str, ...]


@dataclass(frozen=True)
class WeightPlan:
    """A constant that is stored as integers.

    Attributes:
        spec: Type and scale.
        axis: Non-negative axis with one scale for each index, or along which groups of values have one each; None for
            one scale in all.
        users: Names of the nodes that read the quantized constant; other readers keep the float one.
    """

    spec: TensorSpec
    axis: int | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class DerivedBiasPlan:
    """int32 bias on the accumulator's grid: scale = input scale x weight scale.

    Attributes:
        input: Name of the operator's quantized input.
        weight: Name of its quantized weight.
    """

    input: str
    weight: str


@dataclass(frozen=True)
class OwnBiasPlan:
    """A bias with a scale of its own."""

    spec: TensorSpec


BiasPlan = DerivedBiasPlan | OwnBiasPlan


@dataclass(frozen=True)
class DeclinedNode:
    """A node that stays float.

    Attributes:
        node: Its name.
        operator: Its operator type.
        reason: Why, as a sentence for the user.
    """

    node: str
    operator: str
    reason: str


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True)
class QuantPlan:
    """What is quantized, to what, and what is not.

    Attributes:
        activations: Quantized tensors in the order of the graph.
        weights: Quantized constants by initializer name.
        biases: Quantized biases by initializer name.
        quantized_nodes: Names of the nodes that compute on quantized tensors.
        declined: The other nodes, each with its reason.
        conversions: Further pairs behind activations, by a name that no tensor has.
        notes: What the user should know of how it came about.
    """

    activations: Mapping[str, ActivationPlan] = field(default_factory=dict)
    weights: Mapping[str, WeightPlan] = field(default_factory=dict)
    biases: Mapping[str, BiasPlan] = field(default_factory=dict)
    quantized_nodes: tuple[str, ...] = ()
    declined: tuple[DeclinedNode, ...] = ()
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in ("activations", "weights", "biases", "conversions"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))

    def root(self, tensor: str) -> str:
        """Return the tensor whose range `tensor` uses: itself, or the source it shares with.

        A conversion has its own.
        """
        if tensor in self.conversions:
            return tensor
        plan = self.activations[tensor]
        return plan.source if isinstance(plan, SharedRange) else tensor

    @property
    def needs_calibration(self) -> bool:
        """Whether the scale of an activation must be found in data."""
        own = [plan.spec for plan in self.activations.values() if isinstance(plan, OwnRange)]
        converted = [conversion.spec for conversion in self.conversions.values()]
        return any(spec.dtype.is_integer for spec in (*own, *converted))

    def spec_of(self, tensor: str) -> TensorSpec | None:
        """Return what a tensor becomes; None where it stays float, or is a bias derived from others."""
        planned: ActivationPlan | Conversion | WeightPlan | BiasPlan | None
        if tensor in self.activations:
            planned = self.activations[self.root(tensor)]
        else:
            planned = self.conversions.get(tensor) or self.weights.get(tensor) or self.biases.get(tensor)
        return None if planned is None or isinstance(planned, SharedRange | DerivedBiasPlan) else planned.spec

    def specs(self) -> Iterable[TensorSpec]:
        """Yield the specification of every tensor that has one."""
        activations = (*self.activations.values(), *self.conversions.values())
        for plan in (*activations, *self.weights.values(), *self.biases.values()):
            if not isinstance(plan, SharedRange | DerivedBiasPlan):
                yield plan.spec

    def to_blob(self) -> Blob:
        """Return the plan as JSON data."""
        # Plans without them keep the form they had before these existed, and so their keys.
        extra: dict[str, Any] = {}
        if self.conversions:
            extra["conversions"] = [[name, encode(plan, Conversion)] for name, plan in self.conversions.items()]
        return Blob(
            meta={
                "activations": [[name, encode(plan, ActivationPlan)] for name, plan in self.activations.items()],
                "weights": [[name, encode(plan, WeightPlan)] for name, plan in self.weights.items()],
                "biases": [[name, encode(plan, BiasPlan)] for name, plan in self.biases.items()],
                "quantized_nodes": list(self.quantized_nodes),
                "declined": [encode(declined, DeclinedNode) for declined in self.declined],
                **extra,
            },
            notes=self.notes,
        )

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Read what `to_blob` returned."""
        meta: Any = blob.meta
        return cls(
            activations={name: decode(ActivationPlan, plain, name) for name, plain in meta["activations"]},
            weights={name: decode(WeightPlan, plain, name) for name, plain in meta["weights"]},
            biases={name: decode(BiasPlan, plain, name) for name, plain in meta["biases"]},
            quantized_nodes=tuple(meta["quantized_nodes"]),
            declined=tuple(decode(DeclinedNode, plain, "declined") for plain in meta["declined"]),
            conversions={name: decode(Conversion, plain, name) for name, plain in meta.get("conversions", ())},
            notes=blob.notes,
        )
