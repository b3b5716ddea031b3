"""Write HardSwish and HardSigmoid that an exporter took apart as ``x * HardSigmoid(x)`` and HardSigmoid.

::

    x -> Add(3) -> Clip(0, 6) -> Mul(x) -> Div(6) -> y          x -> HardSigmoid -> Mul(x) -> y

Exporters write these functions in many orders, with Mul(1/6) for Div(6), or Relu and Min for Clip. Each of their steps
would be rounded, and the product reaches six times the values of the result. So every chain of elementwise operators
is compared with the two functions, whatever it consists of.
"""

from collections import Counter

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, take_over
from quantry.graph.elementwise import functions_of
from quantry.notes import Note
from quantry.numerics.scalar_function import ScalarFunction

_BOUNDING = ("Clip", "Min", "Max", "Relu", "HardSigmoid")
"""Every chain has one of these after an Add, a Mul or nothing."""

_STEPS_BEFORE = 3
"""Most operators in front of the first bound."""

_LONGEST = 8
"""Most operators of a chain."""

ALPHA, BETA = 1 / 6, 0.5
"""Slope and offset of the HardSigmoid that HardSwish is defined with."""

_GRID = np.linspace(-9.0, 9.0, 1801)
_SIGMOID = np.clip(_GRID * ALPHA + BETA, 0.0, 1.0)
_WANTED = {"HardSwish": _GRID * _SIGMOID, "HardSigmoid": _SIGMOID}
_TOLERANCE = 1e-5  # 1/6 in float32 differs by 1e-8


def restore_hard_swish(model: ir.Model) -> tuple[Note, ...]:
    """Replace chains of operators that compute HardSwish or HardSigmoid.

    The new Mul or HardSigmoid has the name of the last node of the chain. Inner results that something else reads stay.
    """
    names = FreshNames(model)
    replaced: Counter[str] = Counter()
    for graph in model.graphs():
        for node in tuple(graph):
            if node.graph is graph and node.op_type in _BOUNDING and node.domain == "":
                kind = _replace(node, names)
                if kind is not None:
                    replaced[kind] += 1
    return tuple(
        Note.of(
            "wrote {count} {function} functions that consisted of several nodes as {operators}",
            count=count,
            function=function,
            operators="x * HardSigmoid(x)" if function == "HardSwish" else function,
        )
        for function, count in sorted(replaced.items())
    )


def _replace(bounding: ir.Node, names: FreshNames) -> str | None:
    """Replace the longest chain around a bound; return what it computed."""
    for start in _starts(bounding):
        functions = functions_of(start, _LONGEST)
        # HardSwish contains HardSigmoid, so it comes first.
        for kind, samples in _WANTED.items():
            matches = [value for value, function in functions.items() if function.size > 1 and _is(function, samples)]
            ends = [value for value in matches if value.uses() or value.is_graph_output()]
            if ends and not _is_written(ends[-1], start):
                write_hard_sigmoid(start, ends[-1], names, product=kind == "HardSwish")
                return kind
    return None


def _starts(bounding: ir.Node) -> list[ir.Value]:
    """Return the tensors from which a chain may begin, the farthest first."""
    starts: list[ir.Value] = []
    node: ir.Node | None = bounding
    for _ in range(_STEPS_BEFORE):
        computed = (
            [] if node is None else [value for value in node.inputs if value is not None and constant_of(value) is None]
        )
        if len(computed) != 1:
            break
        starts.append(computed[0])
        node = computed[0].producer()
        if node is not None and node.graph is not bounding.graph:
            break
    return starts[::-1]


def _is(function: ScalarFunction, samples: np.ndarray) -> bool:
    return bool(np.abs(function.evaluate(_GRID) - samples).max() < _TOLERANCE)


def _is_written(end: ir.Value, start: ir.Value) -> bool:
    """Whether a tensor is already the product of a tensor with its HardSigmoid."""
    product = end.producer()
    gates = [] if product is None else [value.producer() for value in product.inputs if value is not None]
    return any(gate is not None and gate.op_type == "HardSigmoid" and gate.inputs[0] is start for gate in gates)


def write_hard_sigmoid(start: ir.Value, end: ir.Value, names: FreshNames, *, product: bool) -> ir.Node:
    """Compute a tensor as HardSigmoid(1/6, 0.5) of another one, or its product with that; what computed it is unused.

    Args:
        start: The tensor to compute it from.
        end: The tensor.
        names: Creates free names.
        product: Whether it is the product, which is HardSwish.

    Returns:
        The HardSigmoid.
    """
    last = end.producer()
    assert last is not None
    assert last.graph is not None
    name, last.name = last.name or "", names.node(f"{last.name}_in_parts")
    gate = ir.node("HardSigmoid", [start], {"alpha": ALPHA, "beta": BETA}, name=name)
    nodes = [gate]
    if product:
        gate.name = names.node(f"{name}_gate")
        gate.outputs[0].name = names.value(f"{end.name}_gate")
        gate.outputs[0].type, gate.outputs[0].shape = end.type, end.shape
        nodes.append(ir.node("Mul", [start, gate.outputs[0]], name=name))
    last.graph.insert_before(last, nodes)
    take_over(end, nodes[-1].outputs[0], names)
    return gate
