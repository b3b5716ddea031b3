"""Give dynamic axes of the inputs a size."""

from collections.abc import Mapping

import onnx_ir as ir

from quantry.errors import ModelError, nearest_spelling
from quantry.notes import Note, NoteKind


def fix_dimensions(model: ir.Model, batch: int | None, sizes: Mapping[str, int]) -> tuple[Note, ...]:
    """Fix dynamic axes of all inputs, in place; inference carries the sizes on.

    Args:
        model: The model.
        batch: Size of the first axis of every input that is dynamic there; None keeps it.
        sizes: Sizes of dynamic axes by name.

    Raises:
        ModelError: There is no dynamic axis of such a name.
    """
    symbols = {
        dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)
    }
    for name in sizes:
        if name not in symbols:
            symbol_names = sorted(filter(None, symbols))
            raise ModelError(
                f"dimensions must name dynamic axes of the inputs, got {name!r}{nearest_spelling(name, symbol_names)}; "
                f"the model has {', '.join(symbol_names) or 'none with a name'}"
            )
    lengths = dict(sizes)
    if batch is not None:
        first = [value.shape[0] for value in model.graph.inputs if value.shape is not None and len(value.shape)]
        # The axis has the same name elsewhere, such as in the outputs.
        lengths |= {dim.value: batch for dim in first if isinstance(dim, ir.SymbolicDim) and dim.value}
    fixed = sum(_fix(value, batch, lengths) for value in model.graph.inputs)
    if not fixed:
        return ()
    for node in model.graph:
        for value in node.outputs:
            _fix(value, None, lengths)
    return (Note.of("fixed {count} dynamic axes of the inputs", NoteKind.GRAPH, count=fixed),)


def _fix(value: ir.Value, batch: int | None, sizes: Mapping[str, int]) -> int:
    """Set the sizes of one tensor and return how many were set."""
    if value.shape is None or not value.shape.is_dynamic():
        return 0
    dims: list[int | ir.SymbolicDim] = list(value.shape)
    if batch is not None and not isinstance(dims[0], int):
        dims[0] = batch
    dims = [sizes.get(dim.value or "", dim) if isinstance(dim, ir.SymbolicDim) else dim for dim in dims]
    count = sum(isinstance(new, int) and not isinstance(old, int) for new, old in zip(dims, value.shape, strict=True))
    value.shape = ir.Shape(dims)
    return count
