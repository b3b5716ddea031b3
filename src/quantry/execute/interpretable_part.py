"""How much of a graph the interpreter can train, and where its results are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from quantry.execute.interpreter.operators import interpretable
from quantry.graph.segments import values_used

_MOVES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Identity")


@dataclass(frozen=True, eq=False)
class InterpretablePart:
    """The nodes that follow from the inputs by operators that the interpreter knows.

    Attributes:
        nodes: These nodes, in order.
        targets: Names of the tensors that are compared: outputs of the model, and what other nodes take. Outputs that
            are put together from several tensors are compared part by part.
        notes: Which operators ended it, with the reason.
    """

    nodes: tuple[ir.Node, ...]
    targets: tuple[str, ...]
    notes: tuple[str, ...]


def interpretable_part(model: ir.Model) -> InterpretablePart:
    """Return how much of a model can be trained end to end."""
    known: set[ir.Value] = set(model.graph.inputs)
    nodes: list[ir.Node] = []
    ends: dict[ir.Value, None] = {}
    reasons: dict[str, list[str]] = {}
    for node in model.graph:
        used = [value for value in values_used(node) if not value.is_initializer()]
        reason = interpretable(node)
        if reason is None and all(value in known for value in used):
            nodes.append(node)
            known.update(node.outputs)
            continue
        if reason is not None:
            reasons.setdefault(reason, []).append(node.name or "")
        ends.update(dict.fromkeys(value for value in used if value in known and value.producer() is not None))
    ends.update(
        dict.fromkeys(value for value in model.graph.outputs if value in known and value.producer() is not None)
    )
    notes = tuple(
        f"training ends before {len(names)} nodes, such as {names[0]!r}: {reason}" for reason, names in reasons.items()
    )
    return InterpretablePart(tuple(nodes), _targets(list(ends)), notes)


def _targets(ends: Sequence[ir.Value]) -> tuple[str, ...]:
    """Return the tensors that the ends are put together from."""
    found: dict[str, None] = {}
    pending = list(ends)
    while pending:
        value = pending.pop(0)
        producer = value.producer()
        if producer is None or value.name is None:
            continue
        if producer.op_type in _MOVES and producer.domain == "":
            data = producer.inputs if producer.op_type == "Concat" else producer.inputs[:1]
            pending += [part for part in data if part is not None and not part.is_initializer()]
        elif value.dtype == ir.DataType.FLOAT:
            found[value.name] = None
    return tuple(found)
