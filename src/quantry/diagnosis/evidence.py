"""What the rules for causes read (`Evidence`), and what they return (`Finding`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from quantry.diagnosis.fix import Fix, node_name
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.evaluate.measured_errors import MeasuredError
from quantry.graph.operators import LINEAR
from quantry.graph.quant_plan import QuantPlan
from quantry.recipe import Recipe

GOOD_SQNR = 40.0
"""dB; losses above it are ignored, because more precision would not change the result."""

HARMED_SQNR = 30.0
"""dB of accumulated error below which a layer's result needs an explanation."""

POOR_SQNR = 20.0
"""dB below which a tensor alone is reported: an eighth of the usual 8-bit resolution is lost."""

_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """A cause of lost accuracy.

    Attributes:
        title: What was found, in one line.
        tensors: The tensors, worst first.
        fix: Suggested change of the recipe.
        fixes: The same as data, most promising first; `quantry.auto` tries them.
        gain: dB that the best of them gains on held-out samples; None if none was tried.
    """

    title: str
    tensors: tuple[str, ...]
    fix: str
    fixes: tuple[Fix, ...] = field(default=(), repr=False)
    gain: float | None = None

    def __str__(self) -> str:
        where = ", ".join(self.tensors[:_NAMED]) + (", ..." if len(self.tensors) > _NAMED else "")
        measured = "" if self.gain is None else f" [{self.gain:+.1f} dB on held-out samples]"
        return f"{self.title}{f' ({where})' if where else ''}: {self.fix}{measured}"


@dataclass(frozen=True)
class Fall:
    """A node whose output has more error than its inputs.

    Attributes:
        node: Its name.
        operator: Its operator type.
        tensor: Its output.
        before: SQNR in dB of its worst input; infinite if all inputs are exact.
        after: SQNR in dB of its output.
        lost: dB lost in this node, ignoring losses above `GOOD_SQNR`.
    """

    node: str
    operator: str
    tensor: str
    before: float
    after: float
    lost: float


@dataclass(frozen=True)
class Evidence:
    """What the rules read.

    Attributes:
        model: The float model that was quantized.
        recipe: The recipe; fixes that it already applies are not suggested.
        plan: What is quantized.
        tensors: The quantized tensors, each on its own.
        errors: Measured errors of the tensors that both models have, including the error accumulated before them.
        falls: The nodes that lose most, worst first.
        converted: Output SQNR in dB of the converted and equalized float model compared with the user's; by output.
        ties: Share of samples in which rounding makes several classes share the highest score; 0 without classes.
    """

    model: ir.Model
    recipe: Recipe
    plan: QuantPlan
    tensors: Sequence[TensorHealth]
    errors: Mapping[str, MeasuredError] = field(default_factory=dict)
    falls: Sequence[Fall] = ()
    converted: Mapping[str, float] = field(default_factory=dict)
    ties: float = 0.0

    @property
    def activations(self) -> Iterator[TensorHealth]:
        """The quantized activations."""
        return (tensor for tensor in self.tensors if tensor.kind == "activation")

    def layers(self) -> Iterator[ir.Node]:
        """Yield the linear nodes that read a quantized weight, in graph order."""
        names = {user for planned in self.plan.weights.values() for user in planned.users}
        return (node for node in self.model.graph if node.name in names and node.op_type in LINEAR)

    def is_harmed(self, tensor: str | None) -> bool:
        """Whether so much error has accumulated in a tensor that it needs an explanation."""
        error = self.errors.get(tensor or "")
        return error is not None and error.sqnr < HARMED_SQNR

    def producers(self, tensors: Sequence[str], limit: int = 3) -> tuple[str, ...]:
        """Return the quantized nodes that compute tensors, by the names under which a selection finds them.

        Args:
            tensors: Names of tensors, worst first.
            limit: Maximum number of nodes.
        """
        nodes = {value.name: node for node in self.model.graph for value in node.outputs}
        found = (nodes[name] for name in tensors if name in nodes and nodes[name].name in self.plan.quantized_nodes)
        return tuple(dict.fromkeys(node_name(node) for node in found))[:limit]

    def has_step(self, *kinds: type) -> bool:
        """Whether the recipe tunes with one of these steps."""
        return any(isinstance(step, kinds) for step in self.recipe.tune.steps)


def counted(number: int, thing: str) -> str:
    """Return ``1 weight`` or ``3 weights``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def worst_first(tensors: Sequence[TensorHealth]) -> tuple[str, ...]:
    """Return the names, those with the lowest SQNR first."""
    return tuple(tensor.name for tensor in sorted(tensors, key=lambda tensor: tensor.sqnr))
