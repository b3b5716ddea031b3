"""Names of nodes in the user's own model, followed to what preparation made of them.

Preparation folds and removes nodes, so a recipe may name a node that the prepared graph does not have::

    Conv_0 -> BatchNormalization_1       becomes   Conv_0          BatchNormalization_1 now means Conv_0
    Add_5 -> Clip_6 -> Mul_7 -> Div_8    becomes   Div_8_gate -> Div_8     HardSwish: Clip_6 now means both
    Shape_2 -> Gather_3 -> Reshape_4     becomes   Reshape_4       Shape_2 and Gather_3 are gone: nothing to exclude

An entry that matches a node of the prepared graph stays as it is. One that matches nothing in either graph stays too,
so that the stage that uses it raises.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

import onnx_ir as ir

from quantry.facts.operators import Family, facts
from quantry.notes import Note
from quantry.plan.selection import name_pattern
from quantry.recipe import LayerTypes, Recipe, Selection, Subgraph, TensorTypes

_CALCULATES_NOTHING = (Family.MOVEMENT, Family.SHAPE, Family.CONTROL_FLOW, Family.OTHER)
_SAME_VALUES = ("Identity", "Dropout", "Cast")
_CONSTANTS = ("Constant", "Shape", "Size")


class FollowedNames:
    """Looks up names of the user's model in the prepared graph.

    Attributes:
        notes: What became of each name that the prepared graph does not have.
    """

    def __init__(self, load: Callable[[], ir.Model], prepared: ir.Graph) -> None:
        """Look up names.

        Args:
            load: Returns the user's model with every node named; called only if a name needs it.
            prepared: The prepared graph.
        """
        self.notes: list[Note] = []
        self._load = load
        self._prepared = {str(node.name): node for node in ir.traversal.RecursiveGraphIterator(prepared)}
        self._names = {name for node in self._prepared.values() for name in _names(node)}
        self._tensors = {*prepared.initializers, *(str(value.name) for value in prepared.inputs), *self._names}
        self._constant: dict[ir.Node, bool] = {}

    @cached_property
    def _original(self) -> ir.Graph:
        return self._load().graph

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with names of the prepared graph."""
        options, mixed = recipe.plan, recipe.mix.mixed
        plan = replace(
            options,
            selection=self._selection(options.selection),
            layers=tuple(self._layers(options.layers)),
            tensors=tuple(self._tensor_types(options.tensors)),
        )
        if mixed is not None and (mixed.include or mixed.exclude):
            include, exclude = self._not_empty(mixed.include), self._all(mixed.exclude)
            recipe = replace(recipe, mix=replace(recipe.mix, mixed=replace(mixed, include=include, exclude=exclude)))
        return recipe if plan == options else replace(recipe, plan=plan)

    def _selection(self, selection: Selection) -> Selection:
        subgraphs = (
            Subgraph(self._all(subgraph.starts, _after), self._all(subgraph.ends, _before))
            for subgraph in selection.exclude_subgraphs
        )
        return replace(
            selection,
            input_nodes=self._all(selection.input_nodes, _after),
            output_nodes=self._all(selection.output_nodes, _before),
            include=self._not_empty(selection.include),
            exclude=self._all(selection.exclude),
            exclude_operators=tuple(name for name in selection.exclude_operators if not self._type_is_gone(name)),
            exclude_subgraphs=tuple(subgraph for subgraph in subgraphs if subgraph.starts and subgraph.ends),
        )

    def _layers(self, layers: Iterable[LayerTypes]) -> Iterator[LayerTypes]:
        for layer in layers:
            match = self._all(layer.match)
            operators = tuple(name for name in layer.operators if not self._type_is_gone(name))
            if match or operators:
                yield replace(layer, match=match, operators=operators)

    def _tensor_types(self, tensors: Iterable[TensorTypes]) -> Iterator[TensorTypes]:
        for entry in tensors:
            match = tuple(dict.fromkeys(name for tensor in entry.match for name in self._tensor(tensor)))
            if match:
                yield replace(entry, match=match, readers=self._all(entry.readers))

    def _all(self, entries: Iterable[str], side: "_Side | None" = None) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for entry in entries for name in self._nodes(entry, side)))

    def _not_empty(self, entries: tuple[str, ...]) -> tuple[str, ...]:
        """Follow entries that restrict to some nodes: if nothing is left of them, they must not mean all nodes."""
        return self._all(entries) or entries

    def _nodes(self, entry: str, side: "_Side | None") -> tuple[str, ...]:
        is_meant = name_pattern(entry, "a name")
        if any(map(is_meant, self._names)):
            return (entry,)
        matches = [node for node in self._everywhere() if any(map(is_meant, _names(node)))]
        if not matches:
            return (entry,)
        return self._noted(entry, [name for node in matches for name in self._became(node, side)])

    def _tensor(self, entry: str) -> tuple[str, ...]:
        is_meant = name_pattern(entry, "a name")
        if any(map(is_meant, self._tensors)):
            return (entry,)
        producers = [node for node in self._everywhere() if any(is_meant(str(out.name)) for out in node.outputs)]
        if not producers and not any(map(is_meant, self._original.initializers)):
            return (entry,)
        nodes = (self._prepared[name] for node in producers for name in self._became(node, None))
        return self._noted(entry, [str(node.outputs[0].name) for node in nodes])

    def _noted(self, entry: str, names: list[str]) -> tuple[str, ...]:
        unique = tuple(dict.fromkeys(names))
        message = "{entry!r} of the model is now part of {nodes}, which is taken instead"
        if not unique:
            reason = ": preparation computes it in advance or removes it, so nothing is left of it"
            message = "{entry!r} of the model is not needed" + reason
        self.notes.append(Note.of(message, entry=entry, nodes=", ".join(map(repr, unique))))
        return unique

    def _type_is_gone(self, operator: str) -> bool:
        if operator.startswith("^") or any(node.op_type == operator for node in self._prepared.values()):
            return False
        if all(node.op_type != operator for node in self._everywhere()):
            return False
        message = "operator type {operator} of the model is not needed: preparation folds or removes it"
        self.notes.append(Note.of(message, operator=operator))
        return True

    def _everywhere(self) -> Iterable[ir.Node]:
        return ir.traversal.RecursiveGraphIterator(self._original)

    def _became(self, node: ir.Node, side: "_Side | None") -> list[str]:
        if str(node.name) in self._prepared:
            return [str(node.name)]
        if node.graph is not self._original or self._is_constant(node):
            return []
        rewritten = [name for name in self._kept(node, _after) if self._is_rewritten(name)]
        if rewritten:
            return [new_name for name in rewritten for new_name in (name, f"{name}_gate") if new_name in self._prepared]
        if _calculates(node):
            ancestors = self._kept(node, _first_input)
            return [name for name in ancestors if facts(self._prepared[name]).weight] or self._beside(node, side)
        return self._beside(node, side)

    def _is_rewritten(self, name: str) -> bool:
        """Whether a node of the prepared graph stands for several nodes of the user, the last of which had its name."""
        original = self._by_name.get(name)
        return original is not None and original.op_type != self._prepared[name].op_type

    @cached_property
    def _by_name(self) -> dict[str, ir.Node]:
        return {str(node.name): node for node in self._everywhere()}

    def _beside(self, node: ir.Node, side: "_Side | None") -> list[str]:
        return [] if side is None else self._kept(node, side)

    def _kept(self, node: ir.Node, side: "_Side") -> list[str]:
        """Return the nearest nodes on one side that the prepared graph still has."""
        pending, visited, survivors = [node], {node}, []
        while pending:
            for neighbour in side(pending.pop()):
                if neighbour in visited or self._is_constant(neighbour):
                    continue
                visited.add(neighbour)
                if str(neighbour.name) in self._prepared:
                    survivors.append(str(neighbour.name))
                else:
                    pending.append(neighbour)
        return survivors

    def _is_constant(self, node: ir.Node) -> bool:
        """Whether a node computes the same for all data, at most from the shapes of tensors."""
        pending = [node]
        while pending:
            current = pending[-1]
            producers = [] if current.op_type in _CONSTANTS else list(_inputs(current))
            unknown = [source for source, _ in producers if source is not None and source not in self._constant]
            if unknown:
                pending.extend(unknown)
                continue
            pending.pop()
            self._constant[current] = all(
                stored or (source is not None and self._constant[source]) for source, stored in producers
            )
        return self._constant[node]


_Side = Callable[[ir.Node], Iterable[ir.Node]]


def _names(node: ir.Node) -> list[str]:
    return [str(node.name), *(output.name for output in node.outputs if output.name)]


def _calculates(node: ir.Node) -> bool:
    return facts(node).family not in _CALCULATES_NOTHING and node.op_type not in _SAME_VALUES


def _inputs(node: ir.Node) -> Iterator[tuple[ir.Node | None, bool]]:
    """Yield the producer of each input, and whether the input is stored in the model."""
    for value in node.inputs:
        if value is not None:
            yield value.producer(), value.is_initializer()


def _after(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def _before(node: ir.Node) -> Iterable[ir.Node]:
    return (producer for producer, _ in _inputs(node) if producer is not None)


def _first_input(node: ir.Node) -> Iterable[ir.Node]:
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return () if producer is None else (producer,)
