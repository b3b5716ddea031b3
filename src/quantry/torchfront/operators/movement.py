"""Operators that move values."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from quantry.torchfront.operators.operator_entry import OperatorEntry

_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def concat(values: list[Tensor], *, axis: int) -> Tensor:
    """ONNX Concat."""
    return torch.cat(values, axis)


def split(x: Tensor, *, sizes: Sequence[int] | None = None, axis: int = 0, num_outputs: int = 0) -> tuple[Tensor, ...]:
    """ONNX Split."""
    return tuple(torch.split(x, -(-x.shape[axis] // num_outputs) if sizes is None else list(sizes), axis))


def slice_(
    x: Tensor,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """ONNX Slice; a step of -1 takes an axis backwards."""
    chosen = list(range(len(starts))) if axes is None else list(axes)
    strides = [1] * len(starts) if steps is None else list(steps)
    for axis, start, end, step in zip(chosen, starts, ends, strides, strict=True):
        if step < 0:
            size = x.shape[axis]
            x = x.flip(axis)
            first, last = (bound + size if bound < 0 else bound for bound in (start, max(end, -size - 1)))
            start, end, step = size - 1 - min(first, size - 1), size - 1 - last, -step  # noqa: PLW2901
        x = torch.ops.aten.slice.Tensor(x, axis, start, end, step)
    return x


def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX Gather."""
    flat = torch.index_select(x, axis, index.reshape(-1).to(x.device, torch.int64))
    axis %= x.dim()
    return flat.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def reshape(x: Tensor, *, shape: Sequence[int], allowzero: int = 0) -> Tensor:
    """ONNX Reshape to constant sizes, where 0 keeps a size."""
    return x.reshape([x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(shape)])


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX Flatten to a matrix."""
    return x.reshape(1, -1) if axis == 0 else x.flatten(0, axis - 1).flatten(1)


def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """ONNX Transpose."""
    return x.permute(*(reversed(range(x.dim())) if perm is None else perm))


def squeeze(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    """ONNX Squeeze."""
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def unsqueeze(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    """ONNX Unsqueeze; the axes count in the result."""
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def expand(x: Tensor, *, shape: Sequence[int]) -> Tensor:
    """ONNX Expand: both sides broadcast."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def pad(
    x: Tensor, *, pads: Sequence[int], value: float = 0.0, axes: Sequence[int] | None = None, mode: str = "constant"
) -> Tensor:
    """ONNX Pad; negative amounts crop."""
    rank = x.dim()
    chosen = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    pairs = {axis: (pads[index], pads[index + len(chosen)]) for index, axis in enumerate(chosen)}
    if mode != "constant":
        touched = [axis for axis, pair in pairs.items() if any(pair)]
        first = min(touched, default=rank - 1)
        amounts = [part for axis in reversed(range(first, rank)) for part in pairs.get(axis, (0, 0))]
        return functional.pad(x, amounts, _MODES[mode])
    return functional.pad(
        x, [part for axis in reversed(range(rank)) for part in pairs.get(axis, (0, 0))], "constant", value
    )


OPERATORS = {
    "Concat": OperatorEntry(concat, many=True),
    "Split": OperatorEntry(split, {1: "sizes"}),
    "Slice": OperatorEntry(slice_, {1: "starts", 2: "ends", 3: "axes", 4: "steps"}),
    "Gather": OperatorEntry(gather),
    "Reshape": OperatorEntry(reshape, {1: "shape"}),
    "Flatten": OperatorEntry(flatten),
    "Transpose": OperatorEntry(transpose),
    "Squeeze": OperatorEntry(squeeze, {1: "axes"}),
    "Unsqueeze": OperatorEntry(unsqueeze, {1: "axes"}),
    "Expand": OperatorEntry(expand, {1: "shape"}),
    "Pad": OperatorEntry(pad, {1: "pads", 2: "value", 3: "axes"}),
}
