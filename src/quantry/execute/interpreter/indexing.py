"""Operators that pick, place, count or order values."""

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

_REDUCTIONS = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX GatherElements."""
    return torch.gather(x, axis, _counted(index, x.shape[axis], x.device))


def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    """ONNX GatherND: the last axis of the index is a position in the axes after the first ``batch_dims``."""
    index = index.to(x.device)
    depth = index.shape[-1]
    positions = [_counted(index[..., at], x.shape[batch_dims + at], x.device) for at in range(depth)]
    # Batch axes pick themselves: their index counts along their own axis and broadcasts along the others.
    rank = index.dim() - 1
    batch_index = [
        torch.arange(x.shape[axis], device=x.device).reshape([-1 if at == axis else 1 for at in range(rank)])
        for axis in range(batch_dims)
    ]
    return x[(*batch_index, *positions)]


def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    """ONNX ScatterElements."""
    index = _counted(index, x.shape[axis], x.device)
    kind = _REDUCTIONS[reduction]
    if kind is None:
        return torch.scatter(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, kind, include_self=True)


def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """ONNX ScatterND."""
    index = index.to(x.device)
    depth = index.shape[-1]
    positions = tuple(_counted(index[..., at], x.shape[at], x.device) for at in range(depth))
    if reduction in ("none", "add"):
        return torch.index_put(x, positions, updates, accumulate=reduction == "add")
    # One number for each position, so that torch's reduction along one axis applies.
    flat = torch.zeros_like(positions[0])
    for at, position in enumerate(positions):
        flat = flat * x.shape[at] + position
    inner = x.shape[depth:]
    rows, values = x.reshape(-1, *inner), updates.reshape(-1, *inner)
    target = flat.reshape(-1, *[1] * len(inner)).expand(values.shape)
    return torch.scatter_reduce(rows, 0, target, values, _REDUCTIONS[reduction], include_self=True).reshape(x.shape)


def top_k(
    x: Tensor,
    *,
    k: Sequence[int],
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002, ARG001 - ONNX's name; sorted values are right for any order
) -> tuple[Tensor, Tensor]:
    """ONNX TopK."""
    # The first of equal values comes first, as the standard says; ``torch.topk`` may choose another.
    values, order = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, k[0]), order.narrow(axis, 0, k[0])


def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> Tensor:  # noqa: A002 - ONNX's name
    """ONNX Unique: its first output, ascending."""
    del sorted  # `unique_refusal` lets nothing else pass
    return torch.unique(x.detach(), dim=axis)  # torch has no derivative of it


def unique_refusal(node: ir.Node) -> str | None:
    """Return why a Unique cannot be computed, or None."""
    ascending = node.attributes.get_int("sorted", 1)
    return None if ascending else "Unique in the order of first occurrence has no function in torch here"


def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """ONNX Compress: what a list of conditions selects along an axis; without one, of all values in order."""
    if axis is None:
        x, axis = x.flatten(), 0
    return x.index_select(axis, condition.nonzero()[:, 0].to(x.device))


def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ONNX ArgMax."""
    return _extreme(torch.argmax, x, axis, keepdims, select_last_index)


def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ONNX ArgMin."""
    return _extreme(torch.argmin, x, axis, keepdims, select_last_index)


def _extreme(function: object, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    assert callable(function)
    position: Tensor = function(x.flip(axis) if last else x, axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - position if last else position


def cumulative_sum(x: Tensor, *, axis: int | Sequence[int], exclusive: int = 0, reverse: int = 0) -> Tensor:
    """ONNX CumSum."""
    along = axis[0] if isinstance(axis, Sequence) else axis
    values = x.flip(along) if reverse else x
    # Integers keep their type; torch would widen them.
    total = torch.cumsum(values, along, dtype=x.dtype)
    if exclusive:
        total = total - values
    return total.flip(along) if reverse else total


def triangle(x: Tensor, *, k: int | Sequence[int] = 0, upper: int = 1) -> Tensor:
    """ONNX Trilu: the upper or lower triangle of the last two axes."""
    offset = k[0] if isinstance(k, Sequence) else k
    return torch.triu(x, offset) if upper else torch.tril(x, offset)


def one_hot(index: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX OneHot; an index outside the depth gives a row of "off"."""
    count = int(depth)
    index = index.long()
    index = torch.where(index < 0, index + count, index)
    axis = axis % (index.dim() + 1)
    positions = torch.arange(count, device=index.device).reshape(
        [-1 if at == axis else 1 for at in range(index.dim() + 1)]
    )
    return torch.where(index.unsqueeze(axis) == positions, values[1], values[0])


def non_zero(x: Tensor) -> Tensor:
    """ONNX NonZero: one column per position."""
    return torch.nonzero(x).t()


def suppress(
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    least: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """ONNX NonMaxSuppression: for each image and class, boxes by falling score that overlap none taken before.

    Args:
        boxes: [images, boxes, 4].
        scores: [images, classes, boxes].
        most: Most boxes of a class; absent or 0 for none.
        overlap: Largest intersection over union of two boxes.
        least: Smallest score.
        center_point_box: Whether boxes are center and size instead of two corners.

    Returns:
        int64 [picked, 3]: image, class and box.
    """
    count = 0 if most is None else int(most)
    limit = 0.0 if overlap is None else float(overlap)
    scores = scores.detach()
    first, last = _corners(boxes.detach(), center_point_box)
    picked = []
    for image in range(boxes.shape[0]):
        for kind in range(scores.shape[1]):
            candidates = scores[image, kind]
            order = torch.sort(candidates, descending=True, stable=True).indices
            if least is not None:
                order = order[candidates[order] > float(least)]
            selected: list[int] = []
            for box in order.tolist():
                if len(selected) == count:
                    break
                if not selected or float(_overlaps(first[image], last[image], box, selected).max()) <= limit:
                    selected.append(box)
            picked += [(image, kind, box) for box in selected]
    return torch.tensor(picked, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, center_point_box: int) -> tuple[Tensor, Tensor]:
    first, last = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        return first - last / 2, first + last / 2
    return torch.minimum(first, last), torch.maximum(first, last)


def _overlaps(first: Tensor, last: Tensor, box: int, boxes: list[int]) -> Tensor:
    sides = (torch.minimum(last[box], last[boxes]) - torch.maximum(first[box], first[boxes])).clamp(min=0)
    shared = sides.prod(-1)
    return shared / ((last[box] - first[box]).prod() + (last[boxes] - first[boxes]).prod(-1) - shared)


def _counted(index: Tensor, length: int, device: torch.device) -> Tensor:
    """Return indices from 0 on; negative ones count from the end, which torch refuses."""
    index = index.to(device, torch.int64)
    return torch.where(index < 0, index + length, index)
