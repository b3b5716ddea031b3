r"""Decide which tensors must be observed, and how the others are derived from them.

A tensor can be derived if each of its values is a function of one value of an observed tensor (a *root*)::

    Conv -> c ----> Sigmoid -> s ---> Mul -> m ---> Concat -> z ---> Reshape -> r
             \_________________________/          /
    Conv -> d ---> Relu -> e _____________________/

    roots: c, d      s = sigmoid(c)   m = c * sigmoid(c)   e = relu(d)   z = r = {m, e}
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import Copies, Family, facts
from quantry.graph.elementwise import elementwise_function
from quantry.numerics.scalar_function import (
    IDENTITY,
    MAX_OPERATORS,
    ScalarFunction,
    constant,
    turning_points,
)

# Concatenations of more parts are observed instead: adding up more histograms than this takes longer than counting.
MAX_TERMS = 256
_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True)
class Term:
    """Part of a tensor's values: a function of all values of a root, each a number of times.

    Attributes:
        root: Name of an observed tensor.
        function: The function of the root's values.
        repeat: Number of times each result occurs.
    """

    root: str
    function: ScalarFunction
    repeat: int = 1


Lineage = Mapping[str, tuple[Term, ...]]
"""The terms of each float32 tensor by name; a root's only term is itself."""


def trace_lineage(model: ir.Model, roots: Iterable[str] = (), *, derive: bool = True) -> Lineage:
    """Return how each float32 activation of the main graph is derived from roots.

    Args:
        model: The float model, with types inferred.
        roots: Tensors that must be observed even if they could be derived.
        derive: False makes every tensor a root.

    Returns:
        Terms by tensor name: graph inputs first, then the outputs of the nodes in order. Initializers and tensors
        inside subgraphs are not included.
    """
    tracer = _Tracer(frozenset(roots), derive=derive)
    for value in model.graph.inputs:
        if not value.is_initializer():
            tracer.add_root(value)
    for node in model.graph:
        if node.op_type != "Constant":
            tracer.add_node(node)
    return tracer.terms


class _Tracer:
    """Walks the nodes in order and records the terms of each output."""

    def __init__(self, forced: frozenset[str], *, derive: bool) -> None:
        self.terms: dict[str, tuple[Term, ...]] = {}
        self._forced = forced
        self._derive = derive
        # For each tensor: the tensor it is an elementwise function of (its anchor), and the function. Functions of one
        # anchor meet again in patterns like Mul(x, Sigmoid(x)).
        self._anchors: dict[str, tuple[str, ScalarFunction]] = {}
        self._first_of_kind: dict[object, str] = {}

    def add_root(self, value: ir.Value) -> None:
        # A tensor whose type was not inferred may be float32; the session returns its type.
        if _is_float(value) or (value.name and value.type is None):
            self.terms[_name(value)] = (Term(_name(value), IDENTITY),)
            self._anchors[_name(value)] = (_name(value), IDENTITY)

    def add_node(self, node: ir.Node) -> None:
        output = node.outputs[0] if node.outputs else None
        derivable = output is not None and _is_float(output) and self._derive and output.name not in self._forced
        if not (derivable and output is not None and self._derive_node(node, _name(output))):
            for value in node.outputs:
                self.add_root(value)

    def _derive_node(self, node: ir.Node, name: str) -> bool:
        return (
            self._derive_elementwise(node, name)
            or self._derive_movement(node, name)
            or self._derive_duplicate(node, name)
        )

    def _derive_elementwise(self, node: ir.Node, name: str) -> bool:
        """Record the output as a function of its operands' common anchor, if possible."""
        anchor, operands = self._operands(node)
        function = elementwise_function(node, operands) if anchor is not None else None
        if anchor is None or function is None:
            return False
        terms = tuple(Term(t.root, function.after(t.function), t.repeat) for t in self.terms[anchor])
        if not self._derivable(terms):
            return False
        self.terms[name] = terms
        self._anchors[name] = (anchor, function)
        return True

    def _derive_duplicate(self, node: ir.Node, name: str) -> bool:
        """Record the output as that of an earlier node that computes the same; exporters often write such nodes."""
        kind = _kind(node)
        if kind is None:
            return False
        first = self._first_of_kind.setdefault(kind, name)
        if first == name or first not in self._anchors:
            return False
        self.terms[name], self._anchors[name] = self.terms[first], self._anchors[first]
        return True

    def _operands(self, node: ir.Node) -> tuple[str | None, list[ScalarFunction | None]]:
        """Return the common anchor of all operands that are not constant, if there is one, and the operands."""
        anchors: set[str | None] = set()
        operands: list[ScalarFunction | None] = []
        for value in node.inputs:
            number = None if value is None else _constant_number(value)
            if value is None or number is not None:
                operands.append(None if number is None else constant(number))
                continue
            anchor, function = self._anchors.get(_name(value), (None, None))
            anchors.add(anchor)
            operands.append(function)
        return (anchors.pop() if len(anchors) == 1 else None), operands

    def _derive_movement(self, node: ir.Node, name: str) -> bool:
        """Record the output as the concatenated values of its inputs, if possible."""
        counts = _repeats(node)
        operands = [self.terms.get(_name(value)) for value in counts]
        if not counts or len(node.outputs) != 1 or any(operand is None for operand in operands):
            return False
        totals: dict[tuple[str, ScalarFunction], int] = {}
        for repeat, operand in zip(counts.values(), operands, strict=True):
            for term in operand or ():
                key = (term.root, term.function)
                totals[key] = totals.get(key, 0) + term.repeat * repeat
        if len(totals) > MAX_TERMS:
            return False
        self.terms[name] = tuple(Term(root, function, repeat) for (root, function), repeat in totals.items())
        self._anchors[name] = (name, IDENTITY)
        return True

    def _derivable(self, terms: tuple[Term, ...]) -> bool:
        return all(term.function.size <= MAX_OPERATORS and turning_points(term.function) is not None for term in terms)


def _repeats(node: ir.Node) -> dict[ir.Value, int]:
    """Return how often the values of each input occur in the output; empty if the operator does more than move them."""
    if node.domain not in ("", "ai.onnx"):
        return {}
    if facts(node).copies is Copies.EACH_ONCE and node.inputs[0] is not None:
        return {node.inputs[0]: 1}
    if node.op_type == "Concat":
        repeats: dict[ir.Value, int] = {}
        for value in node.inputs:
            if value is not None:
                repeats[value] = repeats.get(value, 0) + 1
        return repeats
    if node.op_type == "Resize":
        factor = _resize_factor(node)
        return {node.inputs[0]: factor} if factor and node.inputs[0] is not None else {}
    return {}


def _resize_factor(node: ir.Node) -> int:
    """Return how often a nearest-neighbour Resize repeats every value, or 0 if not all are repeated equally often."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if attributes.get("mode", "nearest") != "nearest" or len(node.inputs) < 3 or node.inputs[2] is None:
        return 0
    scales = node.inputs[2].const_value
    if scales is None or scales.size == 0 or "axes" in attributes:
        return 0
    factors = scales.numpy().astype(np.float64)
    if not (factors >= 1).all() or not (factors == np.rint(factors)).all():
        return 0
    transform = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    # With half pixels no coordinate lies halfway between two values, for any factor. Without them, flooring repeats
    # all values equally often, and rounding half down does so for factors up to 2.
    even = (
        transform in ("half_pixel", "pytorch_half_pixel")
        or (transform == "asymmetric" and rounding == "floor")
        or (transform == "asymmetric" and rounding == "round_prefer_floor" and factors.max() <= 2)
    )
    even = even and (transform == "asymmetric" or rounding.startswith("round"))
    return int(factors.prod()) if even else 0


def _kind(node: ir.Node) -> object | None:
    """Return a key that is equal for nodes that compute the same, or None if a node cannot be compared."""
    plain = all(attribute.type not in _GRAPH_TYPES for attribute in node.attributes.values())
    if len(node.outputs) != 1 or facts(node).family is Family.RANDOM or node.domain not in ("", "ai.onnx") or not plain:
        return None
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return node.op_type, tuple(attributes), tuple(_content(value) for value in node.inputs)


def _content(value: ir.Value | None) -> object:
    """Return the content of a small constant, so that equal constants are equal, or else the name of the tensor."""
    tensor = None if value is None else value.const_value
    if value is None or tensor is None or tensor.nbytes > 64 or tensor.dtype == ir.DataType.STRING:
        return None if value is None else value.name
    return str(tensor.dtype), tuple(tensor.shape), tensor.tobytes()


def _constant_number(value: ir.Value) -> float | None:
    """Return the number in a tensor, if it is constant and contains only one."""
    tensor = value.const_value
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point():
        return None
    return float(tensor.numpy().reshape(-1)[0])


def _is_float(value: ir.Value) -> bool:
    return bool(value.name) and isinstance(value.type, ir.TensorType) and value.type.dtype == ir.DataType.FLOAT


def _name(value: ir.Value) -> str:
    return value.name or ""
