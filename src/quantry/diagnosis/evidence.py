"""What the rules for causes read (`Evidence`), and what they return (`Finding`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from quantry.diagnosis.fix import Fix, node_name
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.evaluate.levels import VERY_CLOSE
from quantry.evaluate.measured_errors import MeasuredError
from quantry.facts.operators import LINEAR
from quantry.graph.edit import is_channel_product
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Recipe

_NAMED = 5
_SHOWN_COST = 0.05


@dataclass(frozen=True)
class Finding:
    """A cause of lost accuracy.

    Attributes:
        title: What was found, in one line.
        tensors: The tensors, worst first.
        fix: Suggested change of the recipe.
        fixes: The same as data, most promising first; `quantry.auto` tries them.
        gain: dB that the best of them gains on held-out samples; None if none was tried.
        cost: dB that this cause takes from the outputs, measured by a run without it; None if that cannot be measured.
        decisions: Share of the decisions, 0 to 1, that this cause turns away from those of the float model.
        rounded: What a run without the cause leaves unrounded; empty means `tensors`.
    """

    title: str
    tensors: tuple[str, ...]
    fix: str
    fixes: tuple[Fix, ...] = field(default=(), repr=False)
    gain: float | None = None
    cost: float | None = None
    decisions: float = 0.0
    rounded: tuple[str, ...] = field(default=(), repr=False)

    @property
    def costs(self) -> str:
        """What the cause costs, in words; empty if that is unknown."""
        shares = [f"{self.cost:.1f} dB"] if self.cost is not None and self.cost >= _SHOWN_COST else []
        shares += [f"{self.decisions:.0%} of the decisions"] if self.decisions > 0 else []
        return " and ".join(shares)

    def __str__(self) -> str:
        names = ", ".join(self.tensors[:_NAMED]) + (", ..." if len(self.tensors) > _NAMED else "")
        cost = f"; it costs {self.costs}" if self.costs else ""
        gain = "" if self.gain is None else f" [{self.gain:+.1f} dB on held-out samples]"
        return f"{self.title}{f' ({names})' if names else ''}{cost}: {self.fix}{gain}"


@dataclass(frozen=True)
class Fall:
    """A node whose output has more error than its inputs.

    Attributes:
        node: Its name.
        operator: Its operator type.
        tensor: Its output.
        before: SQNR in dB of its worst input; infinite if all inputs are exact.
        after: SQNR in dB of its output.
        lost: dB lost in this node, ignoring losses above `AS_GOOD.decibels`.
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
        params: Scales and zero points.
        held_out: The quantized activations with the values of the evaluation data; empty if these are the calibration
            data.
        harmless: Tensors whose rounding was found not to change the outputs; rules ignore them.
    """

    model: ir.Model
    recipe: Recipe
    plan: QuantPlan
    tensors: Sequence[TensorHealth]
    errors: Mapping[str, MeasuredError] = field(default_factory=dict)
    falls: Sequence[Fall] = ()
    converted: Mapping[str, float] = field(default_factory=dict)
    ties: float = 0.0
    params: QuantParams = QuantParams({}, ())
    held_out: Sequence[TensorHealth] = ()
    harmless: frozenset[str] = frozenset()

    @property
    def activations(self) -> Iterator[TensorHealth]:
        """The quantized activations that may do harm."""
        return (tensor for tensor in self.tensors if tensor.kind == "activation" and tensor.name not in self.harmless)

    def layers(self) -> Iterator[ir.Node]:
        """Yield the linear nodes that read a quantized weight, in graph order."""
        names = {user for planned in self.plan.weights.values() for user in planned.users}
        return (node for node in self.model.graph if node.name in names and node.op_type in LINEAR)

    def is_harmed(self, tensor: str | None) -> bool:
        """Whether so much error has accumulated in a tensor that it needs an explanation."""
        error = self.errors.get(tensor or "")
        return error is not None and error.sqnr < VERY_CLOSE.decibels

    def producers(self, tensors: Sequence[str], limit: int = 3) -> tuple[str, ...]:
        """Return the quantized nodes that compute tensors, by the names under which a selection finds them.

        Args:
            tensors: Names of tensors, worst first.
            limit: Maximum number of nodes.
        """
        nodes = {value.name: node for node in self.model.graph for value in node.outputs}
        writers = (nodes[name] for name in tensors if name in nodes and nodes[name].name in self.plan.quantized_nodes)
        return tuple(dict.fromkeys(node_name(node) for node in writers if not is_channel_product(node)))[:limit]

    def has_step(self, *kinds: type) -> bool:
        """Whether the recipe tunes with one of these steps."""
        return any(isinstance(step, kinds) for step in self.recipe.tune.steps)


def counted(number: int, noun: str) -> str:
    """Return ``1 weight`` or ``3 weights``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sentence(text: str) -> str:
    """Return a text that starts with a capital letter, unless it starts with a name or a number."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def worst_first(tensors: Sequence[TensorHealth]) -> tuple[str, ...]:
    """Return the names, those with the lowest SQNR first."""
    return tuple(tensor.name for tensor in sorted(tensors, key=lambda tensor: tensor.sqnr))
