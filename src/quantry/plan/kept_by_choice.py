"""The nodes that the user wants in float, known before conversions for a target rename and replace nodes."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.errors import SelectionError
from quantry.plan.layer_types import types_of_nodes
from quantry.plan.planner import plan
from quantry.plan.selected_nodes import deselected
from quantry.prepare import FloatModel
from quantry.recipe import PlanOptions, Selection


def kept_by_choice(model: FloatModel, options: PlanOptions) -> tuple[str, ...]:
    """Return the nodes that the selection, or an entry for layers, leaves float.

    Entries that match nothing are passed over: they may name what a conversion makes. ``Selection.operators`` is not
    asked either, because it says which types to quantize once conversions are done, such as HardSigmoid.

    Args:
        model: The prepared model, before conversions.
        options: Selection and entries for layers.

    Returns:
        Names of nodes, sorted.
    """
    graph = model.model.graph
    names = {name for part in _parts(options.selection) for name in _found(graph, part)}
    if any(entry.keep_float for entry in options.layers):
        names |= _kept_layers(graph, options)
    return tuple(sorted(names))


def names_are_found(model: FloatModel, options: PlanOptions) -> bool:
    """Say whether all that the options name is in the model."""
    try:
        plan(model, options)
    except SelectionError:
        return False
    return True


def _parts(selection: Selection) -> Iterator[Selection]:
    """Split a selection into what can be passed over on its own."""
    yield from (Selection(exclude=(entry,)) for entry in selection.exclude)
    yield from (Selection(exclude_operators=(entry,)) for entry in selection.exclude_operators)
    yield from (Selection(exclude_subgraphs=(entry,)) for entry in selection.exclude_subgraphs)
    yield Selection(input_nodes=selection.input_nodes)
    yield Selection(output_nodes=selection.output_nodes)
    # Whole: without one of its entries, what that entry names would count as not included.
    yield Selection(include=selection.include)


def _found(graph: ir.Graph, selection: Selection) -> frozenset[str]:
    try:
        return frozenset(deselected(graph, selection))
    except SelectionError:
        return frozenset()


def _kept_layers(graph: ir.Graph, options: PlanOptions) -> frozenset[str]:
    try:
        types = types_of_nodes(graph, options.layers)
    except SelectionError:
        return frozenset()
    return frozenset(name for name, entry in types.items() if entry.float_reason is not None)
