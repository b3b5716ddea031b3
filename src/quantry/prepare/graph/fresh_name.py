"""Names for new tensors and nodes that no other in the model has."""

import onnx_ir as ir


class FreshNames:
    """Hands out names that are unique in the whole model, subgraphs included.

    The same model and the same sequence of requests give the same names.
    """

    def __init__(self, model: ir.Model) -> None:
        self._values = _value_names(model)
        self._nodes = {node.name for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.name}

    def value(self, wanted: str) -> str:
        """Return ``wanted``, with a number appended if a tensor of that name exists."""
        return _claim(wanted, self._values)

    def node(self, wanted: str) -> str:
        """Return ``wanted``, with a number appended if a node of that name exists."""
        return _claim(wanted, self._nodes)


def _claim(wanted: str, taken: set[str]) -> str:
    name = wanted
    number = 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def _value_names(model: ir.Model) -> set[str]:
    names: set[str] = set()
    for graph in model.graphs():
        names.update(graph.initializers)
        names.update(value.name for value in graph.inputs if value.name)
        names.update(value.name for node in graph for value in node.outputs if value.name)
    return names
