r"""Divisors, and arguments of roots and logarithms, which must not round to zero.

::

    x -> ReduceL2 -> n -> Clip(1e-12) -> c -> Expand -> d ---v
     \_____________________________________________________> Div          torch.nn.functional.normalize

Div stays float, because a divisor that rounds to zero gives infinity. That helps only if everything that computes the
divisor stays float as well: with a Q/DQ pair after n, c or d, all small norms become zero before Div reads them. The
same holds in front of Reciprocal, Sqrt, Log and powers such as ``x ** -0.5``.

The way back from a divisor ends at a reduction, because a sum of rounded values is accurate enough. Without a lower
bound such as ``Clip(1e-12)`` or ``Add(1e-6)`` it continues, since a sum of zeros would still be zero. It also ends at
layers and functions such as Sigmoid, which then have a float result, and at tensors that others read as integers.

A reciprocal is a divisor that another node multiplies with: where a norm is tiny it is huge, and with a scale for that
all others round to zero. So reciprocals stay float, and products with them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.facts.operators import LINEAR, Family, facts, of_family, operators_where
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, is_constant, is_float
from quantry.plan.stay_float import is_left_float
from quantry.recipe import PlanOptions

DIVISOR_REASON = (
    "it computes a divisor or the argument of a root or a logarithm, which integers of a few bits would round to zero"
)

_SINGULAR = ("Reciprocal", "Rsqrt", "Sqrt", "Log", "ReduceLogSum")
_REDUCTIONS = of_family(Family.AVERAGE, Family.REDUCTION, Family.SELECTION)
# Functions of which a small relative error of the result needs a small relative error of the arguments.
_PASSED = (
    *of_family(Family.ARITHMETIC, Family.JOIN, Family.LOOKUP),
    *operators_where(lambda row: row.copies is not None or (row.family is Family.ACTIVATION and row.homogeneous)),
    *("Clip", "Div", "Sqrt", "Pow", "Where", "TopK", "Reciprocal"),
)
_LAYERS = (*LINEAR, *of_family(Family.NORMALIZATION, Family.SOFTMAX))


def divisor_tensors(graph: ir.Graph, options: PlanOptions) -> frozenset[ir.Value]:
    """Return the tensors that must stay float because a division, a root or a logarithm depends on them.

    Args:
        graph: The sorted graph.
        options: For the rules, which know which readers stay float anyway.
    """
    divisors: dict[ir.Value, bool] = {}  # whether there is a lower bound between the tensor and the division
    for node in reversed(graph):
        for value in _singular_inputs(node):
            divisors[value] = False
        for output in node.outputs:
            if output in divisors:
                for value, bounded in _before(node, bounded=divisors[output]):
                    if value in divisors:
                        divisors[value] = divisors[value] and bounded
                    elif is_float(value) and not is_constant(value) and _may_stay_float(value, divisors, options):
                        divisors[value] = bounded
    return frozenset(divisors) | _reciprocals(graph)


def _may_stay_float(value: ir.Value, divisors: Mapping[ir.Value, bool], options: PlanOptions) -> bool:
    """Whether no reader needs integers: all compute divisors, too, or stay float anyway."""
    readers = [use.node for use in value.uses() if not any(output in divisors for output in use.node.outputs)]
    return all(is_left_float(reader, RULE_OF_OPERATOR.get(reader.op_type), options) for reader in readers)


def keep_divisors_float(node: ir.Node, annotation: Annotation, divisors: frozenset[ir.Value]) -> Annotation | Declined:
    """Return an annotation without the tensors that stay float.

    Args:
        node: The node.
        annotation: What its rule returned.
        divisors: What `divisor_tensors` returned.
    """
    written = any(output in divisors for output in node.outputs)
    read = any(node.inputs[index] in divisors for index in annotation.activations)
    if written and node.op_type in _LAYERS and not read:
        return replace(annotation, output=None)
    return Declined(DIVISOR_REASON) if written or read else annotation


def singular_operand(node: ir.Node) -> ir.Value | None:
    """Return the float activation that a node divides by, or takes a root or a logarithm of; None for other nodes.

    Args:
        node: The node.
    """
    index = 0 if node.op_type in _SINGULAR else 1 if node.op_type == "Div" else None
    if node.op_type == "Pow" and not _is_whole_power(node):
        index = 0
    value = None if index is None else node.inputs[index]
    return value if value is not None and is_float(value) and not is_constant(value) else None


def _singular_inputs(node: ir.Node) -> Iterator[ir.Value]:
    value = singular_operand(node)
    if value is not None and not _is_read_by_a_layer(value):
        yield value


def _is_read_by_a_layer(value: ir.Value) -> bool:
    return any(use.node.op_type in LINEAR for use in value.uses())


def _reciprocals(graph: ir.Graph) -> set[ir.Value]:
    """Return inverse tensors, and what is only moved or scaled after that."""
    reciprocals: set[ir.Value] = set()
    for node in graph:
        computed = [value for value in node.inputs if value is not None and not is_constant(value)]
        moved = len(computed) == 1 and (facts(node).copies is not None or node.op_type in ("Mul", "Neg"))
        if _inverts(node) or (moved and computed[0] in reciprocals):
            reciprocals.update(node.outputs)
    return reciprocals


def _inverts(node: ir.Node) -> bool:
    if node.op_type == "Div":
        return is_constant(node.inputs[0]) and not is_constant(node.inputs[1])
    if node.op_type == "Pow":
        exponent = _constant(node.inputs[1])
        return exponent is not None and bool((exponent < 0).any())
    return node.op_type in ("Reciprocal", "Rsqrt")


def _is_whole_power(node: ir.Node) -> bool:
    exponent = _constant(node.inputs[1])
    return exponent is not None and bool(np.all((exponent >= 0) & (exponent == np.trunc(exponent))))


def _before(node: ir.Node, *, bounded: bool) -> Iterator[tuple[ir.Value, bool]]:
    """Yield the inputs of a node with a float result that have to stay float, too."""
    if node.op_type in _REDUCTIONS:
        if not bounded and node.inputs[0] is not None:
            yield node.inputs[0], bounded
    elif node.op_type in _PASSED and not _is_square(node):
        bounded = bounded or _has_lower_bound(node)
        yield from ((operand, bounded) for operand in node.inputs if operand is not None)


def _is_square(node: ir.Node) -> bool:
    # The square of a rounded value is as accurate as the value.
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


def _has_lower_bound(node: ir.Node) -> bool:
    if node.op_type == "Clip":
        lowest = node.attributes.get_float("min", 0.0) if len(node.inputs) < 2 else None
        return lowest > 0 if lowest is not None else _is_positive(node.inputs[1])
    return node.op_type in ("Add", "Max", "Sum") and any(_is_positive(value) for value in node.inputs)


def _is_positive(value: ir.Value | None) -> bool:
    numbers = _constant(value)
    return numbers is not None and bool(numbers.size) and bool((numbers > 0).all())


def _constant(value: ir.Value | None) -> npt.NDArray[np.float64] | None:
    tensor = None if value is None else value.const_value
    return None if tensor is None else np.asarray(tensor.numpy(), np.float64)
