"""What rules for causes look at, and what they answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from quantry.diagnosis.measured_errors import MeasuredError
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.graph.operators import LINEAR
from quantry.graph.quant_plan import QuantPlan
from quantry.recipe import Recipe

GOOD_SQNR = 40.0
"""dB beyond which more would change no answer: what is lost above it does not count."""

HARMED_SQNR = 30.0
"""dB of gathered error below which a layer's result is worth explaining."""

POOR_SQNR = 20.0
"""dB below which a tensor by itself is worth a word: an eighth of the usual 8-bit resolution is gone."""

_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """A cause of lost accuracy.

    Attributes:
        title: What was found, in one line.
        tensors: Where, worst first.
        remedy: What to change in the recipe, or where to read on.
    """

    title: str
    tensors: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        where = ", ".join(self.tensors[:_NAMED]) + (", ..." if len(self.tensors) > _NAMED else "")
        return f"{self.title}{f' ({where})' if where else ''}: {self.remedy}"


@dataclass(frozen=True)
class Fall:
    """A node behind which more error has gathered than before it.

    Attributes:
        node: Its name.
        operator: Its operator type.
        tensor: Its output.
        before: SQNR in dB of its worst input; infinite where all inputs are exact.
        after: SQNR in dB of its output.
        lost: dB lost here, of the first 40 that matter.
    """

    node: str
    operator: str
    tensor: str
    before: float
    after: float
    lost: float


@dataclass(frozen=True)
class Evidence:
    """What the rules look at.

    Attributes:
        model: The float model that was quantized.
        recipe: What was asked for: no remedy names what is in it already.
        plan: What is quantized.
        tensors: Health of the quantized tensors.
        errors: Measured errors of the tensors that both models have, with all that gathered before them.
        falls: Nodes that lose most, worst first.
        converted: Output SQNR in dB of the converted and equalized float model against the user's; by output.
    """

    model: ir.Model
    recipe: Recipe
    plan: QuantPlan
    tensors: Sequence[TensorHealth]
    errors: Mapping[str, MeasuredError] = field(default_factory=dict)
    falls: Sequence[Fall] = ()
    converted: Mapping[str, float] = field(default_factory=dict)

    @property
    def activations(self) -> Iterator[TensorHealth]:
        """The quantized activations."""
        return (tensor for tensor in self.tensors if tensor.kind == "activation")

    def layers(self) -> Iterator[ir.Node]:
        """Yield the linear nodes that read a quantized weight, in the order of the graph."""
        names = {user for planned in self.plan.weights.values() for user in planned.users}
        return (node for node in self.model.graph if node.name in names and node.op_type in LINEAR)

    def is_harmed(self, tensor: str | None) -> bool:
        """Whether so much error has gathered in a tensor that it is worth explaining."""
        error = self.errors.get(tensor or "")
        return error is not None and error.sqnr < HARMED_SQNR

    def has_step(self, *kinds: type) -> bool:
        """Whether the recipe tunes with one of these steps."""
        return any(isinstance(step, kinds) for step in self.recipe.tune.steps)


def counted(number: int, thing: str) -> str:
    """Return ``1 weight`` or ``3 weights``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def worst_first(tensors: Sequence[TensorHealth]) -> tuple[str, ...]:
    """Return the names, those with the least signal over noise first."""
    return tuple(tensor.name for tensor in sorted(tensors, key=lambda tensor: tensor.sqnr))
