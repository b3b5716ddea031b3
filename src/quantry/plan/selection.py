"""Which nodes the user's selection leaves float, and how names and patterns match nodes and tensors."""

import fnmatch
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from quantry.errors import SelectionError, nearest_spelling
from quantry.graph.edit import is_channel_product, producers_of
from quantry.plan.rules import RULE_OF_OPERATOR
from quantry.recipe import Selection

_EXPRESSION = re.compile(r"[\\*+?()|\[\]{}$]")


def name_pattern(entry: str, path: str) -> Callable[[str], bool]:
    """Return a function that says whether an entry matches a name.

    Args:
        entry: A name with the wildcards of a shell (``*``, ``?``, ``[2-5]``), or, starting with ``^``, a regular
            expression that must match from the start.
        path: The field that holds it, for messages.

    Raises:
        SelectionError: The regular expression is not valid.

    Example:
        >>> [name for name in ("head/conv", "stem/conv") if name_pattern("head/*", "exclude")(name)]
        ['head/conv']
    """
    if not isinstance(entry, str):
        raise SelectionError.of(path, f"must hold names, got {entry!r}")
    if entry.startswith("^"):
        try:
            return _found_by(re.compile(entry))
        except re.error as error:
            raise SelectionError.of(path, f"must hold valid regular expressions, got {entry!r}: {error}") from error
    # A name may contain wildcards itself, as in "block[0]".
    return lambda name: name == entry or fnmatch.fnmatchcase(name, entry)


def meant(entry: str, candidates: Iterable[str]) -> str:
    """Return a hint for an entry that matches nothing, such as the nearest name; empty if there is none.

    Args:
        entry: The entry.
        candidates: All names.
    """
    names = list(candidates)
    if _EXPRESSION.search(entry) and not entry.startswith("^"):
        try:
            hits = sum(map(_found_by(re.compile(f"^{entry}")), names))
        except re.error:
            hits = 0
        if hits:
            return f"; did you mean {'^' + entry!r}? Regular expressions start with ^, and this one matches {hits}"
    return nearest_spelling(entry.lstrip("^"), names)


def _found_by(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.match(name) is not None


def deselected(graph: ir.Graph, selection: Selection) -> dict[str, str]:
    """Return the nodes that the selection leaves float.

    Args:
        graph: The graph; every node has a unique name, also inside the bodies of control flow.
        selection: The user's selection.

    Returns:
        Node name to reason; for nodes inside bodies too.

    Raises:
        SelectionError: An entry matches no node.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    groups = [*_excluded(nodes, selection), *_outside(nodes, selection)]
    reasons: dict[str, str] = {}
    for excluded, reason in groups:
        for node in excluded:
            reasons.setdefault(_name(node), reason)
    for node in filter(is_channel_product, nodes):
        # No recipe names what equalization inserts: it is part of the layer whose result it multiplies.
        for producer in producers_of(node):
            if _name(producer) in reasons:
                reasons.setdefault(_name(node), reasons[_name(producer)])
    return reasons


def deselected_so_far(graph: ir.Graph, selection: Selection) -> dict[str, str]:
    """Return the nodes that the selection leaves float, before conversions that create some of the nodes it names.

    Args:
        graph: As for `deselected`.
        selection: The user's selection; entries that match nothing are ignored.

    Returns:
        Node name to reason.
    """
    reasons: dict[str, str] = {}
    for subset in _parts(selection):
        try:
            reasons = {**deselected(graph, subset), **reasons}
        except SelectionError:
            continue
    return reasons


def _parts(selection: Selection) -> Iterator[Selection]:
    """Split a selection into parts that can be ignored one by one."""
    yield from (Selection(exclude=(entry,)) for entry in selection.exclude)
    yield from (Selection(exclude_operators=(entry,)) for entry in selection.exclude_operators)
    yield from (Selection(exclude_subgraphs=(entry,)) for entry in selection.exclude_subgraphs)
    yield Selection(input_nodes=selection.input_nodes)
    yield Selection(output_nodes=selection.output_nodes)
    # Not split: without one of its entries, the nodes of that entry would count as not included.
    yield Selection(include=selection.include)
    yield Selection(operators=selection.operators)


def _excluded(nodes: list[ir.Node], selection: Selection) -> Iterator[tuple[Iterable[ir.Node], str]]:
    for entry in selection.exclude:
        names = {_name(node) for node in nodes}
        # A recipe may list hundreds of nodes: they have one reason together.
        reason = "excluded by its name" if entry in names else f"excluded by {entry!r}"
        yield matching(nodes, entry, "Selection.exclude"), reason
    for operator in selection.exclude_operators:
        yield of_type(nodes, operator, "Selection.exclude_operators"), f"operator type {operator} is excluded"
    for subgraph in selection.exclude_subgraphs:
        starts = _union(nodes, subgraph.starts, "Selection.exclude_subgraphs.starts")
        ends = _union(nodes, subgraph.ends, "Selection.exclude_subgraphs.ends")
        between = _reach(starts, _successors) & _reach(ends, _predecessors)
        if not between:
            raise SelectionError.of(
                "Selection.exclude_subgraphs",
                f"must name nodes joined by a path, got no path from {subgraph.starts} to {subgraph.ends}",
            )
        yield between, f"between {', '.join(subgraph.starts)} and {', '.join(subgraph.ends)}, excluded"


def _outside(nodes: list[ir.Node], selection: Selection) -> Iterator[tuple[Iterable[ir.Node], str]]:
    if selection.input_nodes:
        firsts = _union(nodes, selection.input_nodes, "Selection.input_nodes")
        yield _reach(firsts, _predecessors) - firsts, "before the input nodes"
    if selection.output_nodes:
        lasts = _union(nodes, selection.output_nodes, "Selection.output_nodes")
        yield _reach(lasts, _successors) - lasts, "after the output nodes"
    if selection.include:
        included = _union(nodes, selection.include, "Selection.include")
        yield (node for node in nodes if node not in included), "not among the included nodes"
    if selection.operators:
        selected = of_types(nodes, selection.operators, "Selection.operators")
        yield (node for node in nodes if node not in selected), "not among the operator types to quantize"


def _name(node: ir.Node) -> str:
    assert node.name is not None
    return node.name


def _names(node: ir.Node) -> list[str]:
    return [_name(node), *(output.name for output in node.outputs if output.name)]


def matching(nodes: list[ir.Node], entry: str, path: str) -> list[ir.Node]:
    """Return the nodes that one entry matches.

    Args:
        nodes: All nodes.
        entry: Name of a node or of one of its outputs, or a pattern; see `name_pattern`.
        path: The field that holds it, for messages.

    Raises:
        SelectionError: No node matches.
    """
    is_meant = name_pattern(entry, path)
    matches = [node for node in nodes if any(map(is_meant, _names(node)))]
    if not matches:
        names = [name for node in nodes for name in _names(node)]
        raise SelectionError.of(
            path,
            f"must name nodes of the prepared graph, got {entry!r}, which matches none of its {len(nodes)} "
            f"nodes{meant(entry, names)} (nodes that are folded away, such as BatchNormalization or Identity, need not "
            "be excluded)",
        )
    return matches


def of_type(nodes: list[ir.Node], operator: str, path: str) -> list[ir.Node]:
    """Return the nodes of an operator type.

    Args:
        nodes: All nodes.
        operator: The type; starting with ``^``, a regular expression.
        path: The field that holds it, for messages.

    Raises:
        SelectionError: No node has it.
    """
    try:
        pattern = re.compile(operator if operator.startswith("^") else f"{re.escape(operator)}$")
    except re.error as error:
        raise SelectionError.of(path, f"must hold valid regular expressions, got {operator!r}: {error}") from error
    matches = [node for node in nodes if pattern.match(node.op_type)]
    if not matches:
        operators = sorted({node.op_type for node in nodes})
        raise SelectionError.of(
            path,
            f"must name operator types of the graph, got {operator!r}{nearest_spelling(operator, operators)} (it has "
            f"{', '.join(operators)})",
        )
    return matches


def of_types(nodes: list[ir.Node], operators: Iterable[str], path: str) -> set[ir.Node]:
    """Return the nodes of several operator types; known types may be absent.

    Args:
        nodes: All nodes.
        operators: The types, as for `of_type`.
        path: The field that holds them, for messages.

    Raises:
        SelectionError: No node has a type that no rule knows.
    """
    present = {node.op_type for node in nodes}
    # A known type that is absent is not a misspelling: a network without MatMul simply has none to quantize.
    usable = [entry for entry in operators if entry in present or entry not in RULE_OF_OPERATOR]
    return {node for entry in usable for node in of_type(nodes, entry, path)}


def _union(nodes: list[ir.Node], entries: Iterable[str], path: str) -> set[ir.Node]:
    return {node for entry in entries for node in matching(nodes, entry, path)}


def _successors(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def _predecessors(node: ir.Node) -> Iterable[ir.Node]:
    producers = (value.producer() for value in node.inputs if value is not None)
    return (producer for producer in producers if producer is not None)


def _reach(starts: set[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    visited, queue = set(starts), deque(starts)
    while queue:
        for neighbour in step(queue.popleft()):
            if neighbour not in visited:
                visited.add(neighbour)
                queue.append(neighbour)
    return visited
