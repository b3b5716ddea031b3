"""`QuantPlan`: which tensors are quantized to what, which share parameters, and which nodes stay float and why."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from quantry.memo import Blob
from quantry.notes import Note
from quantry.recipe import TensorSpec, decode, encode


@dataclass(frozen=True)
class OwnRange:
    """The tensor is calibrated on its own."""

    spec: TensorSpec


@dataclass(frozen=True)
class FixedRange:
    """The range is known without data, such as [0, 1] for Softmax."""

    spec: TensorSpec
    low: float
    high: float


@dataclass(frozen=True)
class SharedRange:
    """The tensor uses the parameters of another tensor, which has its own range.

    Attributes:
        source: Name of that other tensor; never itself a `SharedRange`.
    """

    source: str


ActivationPlan = OwnRange | FixedRange | SharedRange


@dataclass(frozen=True)
class Conversion:
    """An additional Q/DQ pair after a quantized tensor, for readers that need another type.

    Its parameters are stored under the conversion's own name.

    Attributes:
        tensor: Name of the tensor.
        spec: Type and scale that its readers need.
        readers: Names of the nodes that read it; other readers read the tensor itself. The empty name stands for a
            model output of the tensor's name.
    """

    tensor: str
    spec: TensorSpec
    readers: tuple[str, ...]


@dataclass(frozen=True)
class WeightPlan:
    """A constant that is stored as integers.

    Attributes:
        spec: Type and scale.
        axis: Non-negative axis with one scale per index, or the axis of the groups; None for one scale.
        users: Names of the nodes that read the quantized constant; other readers use the float one.
    """

    spec: TensorSpec
    axis: int | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class DerivedBiasPlan:
    """int32 bias for the accumulator: scale = input scale x weight scale.

    Attributes:
        input: Name of the operator's quantized input.
        weight: Name of its quantized weight.
    """

    input: str
    weight: str


@dataclass(frozen=True)
class OwnBiasPlan:
    """A bias with its own scale."""

    spec: TensorSpec


BiasPlan = DerivedBiasPlan | OwnBiasPlan


@dataclass(frozen=True)
class DeclinedNode:
    """A node that stays float.

    Attributes:
        node: Its name.
        operator: Its operator type.
        reason: The reason, as a sentence for the user.
    """

    node: str
    operator: str
    reason: str


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True)
class QuantPlan:
    """What is quantized, to what types, and what is not.

    Attributes:
        activations: Quantized tensors in graph order.
        weights: Quantized constants by initializer name.
        biases: Quantized biases by initializer name.
        quantized_nodes: Names of the nodes that compute on quantized tensors.
        declined: The other nodes, each with its reason.
        inside: Names of the quantized nodes in bodies of control flow that were quantized as models of their own.
        declined_inside: The other nodes of these bodies.
        conversions: Additional Q/DQ pairs after activations, by a name that no tensor has.
        notes: Messages for the user.
    """

    activations: Mapping[str, ActivationPlan] = field(default_factory=dict)
    weights: Mapping[str, WeightPlan] = field(default_factory=dict)
    biases: Mapping[str, BiasPlan] = field(default_factory=dict)
    quantized_nodes: tuple[str, ...] = ()
    declined: tuple[DeclinedNode, ...] = ()
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    declined_inside: tuple[DeclinedNode, ...] = ()
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in ("activations", "weights", "biases", "conversions"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))

    def root(self, tensor: str) -> str:
        """Return the tensor whose range `tensor` uses: itself, or the tensor it shares with.

        A conversion has its own range.
        """
        if tensor in self.conversions:
            return tensor
        plan = self.activations[tensor]
        return plan.source if isinstance(plan, SharedRange) else tensor

    @property
    def all_quantized(self) -> tuple[str, ...]:
        """Names of the quantized nodes of the main graph and of bodies."""
        return (*self.quantized_nodes, *self.inside)

    @property
    def float_because(self) -> Mapping[str, tuple[DeclinedNode, ...]]:
        """The nodes of `all_declined` by their reason, the most frequent reason first."""
        groups: dict[str, list[DeclinedNode]] = {}
        for declined in self.all_declined:
            groups.setdefault(declined.reason, []).append(declined)
        return {reason: tuple(nodes) for reason, nodes in sorted(groups.items(), key=lambda group: -len(group[1]))}

    @property
    def all_declined(self) -> tuple[DeclinedNode, ...]:
        """The nodes of the main graph and of bodies that stay float."""
        return (*self.declined, *self.declined_inside)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is quantized, neither a node nor the weights inside a body."""
        return not (self.all_quantized or self.weights or self.activations)

    @property
    def needs_calibration(self) -> bool:
        """Whether the scale of an activation must be computed from data."""
        specs = [plan.spec for plan in self.activations.values() if isinstance(plan, OwnRange)]
        converted = [conversion.spec for conversion in self.conversions.values()]
        return any(spec.dtype.has_scale for spec in (*specs, *converted))

    def spec_of(self, tensor: str) -> TensorSpec | None:
        """Return the specification of a tensor; None if it stays float, or is a bias derived from others."""
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
        # Omitted if empty, so that plans without them keep the stored form, and the keys, from before they existed.
        extra: dict[str, Any] = {}
        if self.conversions:
            extra["conversions"] = [[name, encode(plan, Conversion)] for name, plan in self.conversions.items()]
        if self.inside or self.declined_inside:
            extra["inside"] = list(self.inside)
            extra["declined_inside"] = [encode(declined, DeclinedNode) for declined in self.declined_inside]
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
        """Return the plan that `to_blob` stored."""
        meta: Any = blob.meta
        return cls(
            activations={name: decode(ActivationPlan, plain, name) for name, plain in meta["activations"]},
            weights={name: decode(WeightPlan, plain, name) for name, plain in meta["weights"]},
            biases={name: decode(BiasPlan, plain, name) for name, plain in meta["biases"]},
            quantized_nodes=tuple(meta["quantized_nodes"]),
            declined=tuple(decode(DeclinedNode, plain, "declined") for plain in meta["declined"]),
            conversions={name: decode(Conversion, plain, name) for name, plain in meta.get("conversions", ())},
            inside=tuple(meta.get("inside", ())),
            declined_inside=tuple(decode(DeclinedNode, plain, "inside") for plain in meta.get("declined_inside", ())),
            notes=blob.notes,
        )
