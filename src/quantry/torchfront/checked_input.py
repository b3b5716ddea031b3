"""Inputs of a quantized module are of the sizes it was captured with, as those of the captured graph must be."""

from collections.abc import Sequence

from torch import Tensor

from quantry.errors import DataError


def checked_input(value: Tensor, name: str, sizes: Sequence[int | None] | None) -> Tensor:
    """Return an input as it is.

    The graph holds what the capture computed from the sizes of its example, such as kernels of pools: with other sizes
    it would give other results than the user's model.

    Args:
        value: The input.
        name: Its name.
        sizes: The sizes it must have, None for those that may vary; None where nothing is known.

    Raises:
        DataError: It is no tensor, or has another rank or size.
    """
    if not isinstance(value, Tensor):
        raise DataError(f"input {name!r} must be a tensor, got {type(value).__name__}; in QuantizedModule")
    if sizes is None or (
        len(value.shape) == len(sizes)
        and all(wanted is None or wanted == given for wanted, given in zip(sizes, value.shape, strict=True))
    ):
        return value
    shown = ", ".join("any" if size is None else str(size) for size in sizes)
    raise DataError(
        f"input {name!r} must have the sizes it was captured with, [{shown}], got {list(value.shape)}; capture the "
        "model with dynamic_shapes for sizes that vary; in QuantizedModule"
    )


def checked_constant(value: object, captured: object, place: int) -> None:
    """Refuse an argument that is no tensor and not what the graph was captured with, as it is part of the graph.

    Args:
        value: The argument.
        captured: What it was at the capture.
        place: Its place among the arguments.

    Raises:
        DataError: It is something else.
    """
    if type(value) is not type(captured) or value != captured:
        raise DataError(
            f"argument {place} must be what it was at the capture, {captured!r}, got {value!r}; capture the model "
            "again with that; in QuantizedModule"
        )
