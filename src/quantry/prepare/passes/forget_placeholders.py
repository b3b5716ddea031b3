"""Forgets axis lengths that exporters write for "unknown"."""

import onnx_ir as ir


def forget_placeholders(model: ir.Model) -> tuple[str, ...]:
    """Turn ``?`` and negative numbers in shapes into axes without a length.

    Some exporters write the same ``?`` for every axis they do not know; taken for a name it would say that all these
    axes are equally long.
    """
    for graph in model.graphs():
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None and any(_is_placeholder(dim) for dim in value.shape):
                value.shape = ir.Shape([None if _is_placeholder(dim) else dim for dim in value.shape])
    return ()


def _is_placeholder(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim < 0
    return dim.value is not None and not any(character.isalpha() for character in dim.value)
