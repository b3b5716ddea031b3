"""Operators that move, repeat or make data, and those that compute shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.execute.interpreter.attributes import Attributes

Inputs = list[Any]

_TORCH_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.BOOL: torch.bool,
}


def ints(tensor: Any) -> list[int]:
    """Return a tensor of whole numbers as a list."""
    return [int(value) for value in tensor.reshape(-1).tolist()]


def _reshape(inputs: Inputs, attributes: Attributes) -> Any:
    values, shape = inputs[0], ints(inputs[1])
    if not attributes.integer("allowzero"):
        shape = [values.shape[axis] if length == 0 else length for axis, length in enumerate(shape)]
    if shape and shape[0] == 1 and values.dim() and values.shape[0] > 1:
        # A model of fixed batch 1 that is run on several samples at once.
        rest = int(np.prod([length for length in shape[1:] if length != -1]))
        if -1 in shape[1:] or rest * values.shape[0] == values.numel():
            shape = [values.shape[0], *shape[1:]]
    return values.reshape(shape)


def _slice(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    starts, ends = (
        (ints(inputs[1]), ints(inputs[2]))
        if len(inputs) > 2
        else (attributes.integers("starts"), attributes.integers("ends"))
    )
    axes = (
        ints(inputs[3])
        if len(inputs) > 3 and inputs[3] is not None
        else attributes.integers("axes", range(len(starts)))
    )
    steps = ints(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen = range(values.shape[axis])[slice(start, end if end >= -(2**31) else None, step)]
        if step > 0:
            index = [slice(None)] * values.dim()
            index[axis] = slice(chosen.start, chosen.stop, chosen.step)
            values = values[tuple(index)]
        else:
            values = values.index_select(axis % values.dim(), torch.tensor(list(chosen), device=values.device))
    return values


def _gather(inputs: Inputs, attributes: Attributes) -> Any:
    values, index = inputs[0], inputs[1].to(inputs[0].device, torch.long)
    axis = attributes.integer("axis") % values.dim()
    index = torch.where(index < 0, index + values.shape[axis], index)
    picked = values.index_select(axis, index.reshape(-1))
    return picked.reshape(*values.shape[:axis], *index.shape, *values.shape[axis + 1 :])


def _split(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    axis = attributes.integer("axis") % values.dim()
    sizes = ints(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else attributes.integers("split")
    if not sizes:
        each = -(-values.shape[axis] // attributes.outputs)
        sizes = [min(each, values.shape[axis] - at * each) for at in range(attributes.outputs)]
    return tuple(torch.split(values, sizes, axis))


def _axes(inputs: Inputs, attributes: Attributes) -> list[int]:
    if len(inputs) > 1 and inputs[1] is not None:
        return ints(inputs[1])
    return attributes.integers("axes")


def _squeeze(inputs: Inputs, attributes: Attributes) -> Any:
    axes = _axes(inputs, attributes)
    return inputs[0].squeeze(tuple(axes)) if axes else inputs[0].squeeze()


def _unsqueeze(inputs: Inputs, attributes: Attributes) -> Any:
    axes = _axes(inputs, attributes)
    rank = inputs[0].dim() + len(axes)
    values = inputs[0]
    for axis in sorted(axis % rank for axis in axes):
        values = values.unsqueeze(axis)
    return values


def _flatten(inputs: Inputs, attributes: Attributes) -> Any:
    axis = attributes.integer("axis", 1)
    axis = axis + inputs[0].dim() if axis < 0 else axis
    return inputs[0].reshape(int(np.prod(inputs[0].shape[:axis])), -1)


def _pad(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    pads = ints(inputs[1]) if len(inputs) > 1 else attributes.integers("pads")
    fill = float(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else attributes.number("value")
    axes = ints(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else list(range(values.dim()))
    before, after = [0] * values.dim(), [0] * values.dim()
    for at, axis in enumerate(axes):
        before[axis], after[axis] = pads[at], pads[at + len(axes)]
    mode = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}[
        attributes.text("mode", "constant")
    ]
    flat = [side[axis] for axis in reversed(range(values.dim())) for side in (before, after)]
    if mode == "constant":
        return F.pad(values, flat, value=fill)
    while len(flat) > 2 and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    # torch pads by other modes only behind two leading axes.
    return F.pad(values, flat, mode=mode)


def _depth_to_space(inputs: Inputs, attributes: Attributes) -> Any:
    n, c, h, w = inputs[0].shape
    block = attributes.integer("blocksize")
    if attributes.text("mode", "DCR") == "CRD":
        return F.pixel_shuffle(inputs[0], block)
    split = inputs[0].reshape(n, block, block, c // block**2, h, w)
    return split.permute(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(inputs: Inputs, attributes: Attributes) -> Any:
    n, c, h, w = inputs[0].shape
    block = attributes.integer("blocksize")
    split = inputs[0].reshape(n, c, h // block, block, w // block, block)
    return split.permute(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)


def _cast(inputs: Inputs, attributes: Attributes) -> Any:
    return inputs[0].to(_TORCH_TYPES[ir.DataType(attributes.integer("to"))])


def _constant_of_shape(inputs: Inputs, attributes: Attributes) -> Any:
    tensor = attributes.tensor("value")
    fill = torch.zeros(1) if tensor is None else torch.from_numpy(tensor.numpy().copy())
    return fill.reshape(()).expand(ints(inputs[0]))


def _constant(_: Inputs, attributes: Attributes) -> Any:
    tensor = attributes.tensor("value")
    assert tensor is not None
    return torch.from_numpy(np.array(tensor.numpy()))


def _expand(inputs: Inputs, _: Attributes) -> Any:
    shape = torch.broadcast_shapes(inputs[0].shape, tuple(ints(inputs[1])))
    return inputs[0].expand(shape)


def _shape(inputs: Inputs, attributes: Attributes) -> Any:
    shape = list(inputs[0].shape)
    end = attributes.integer("end") if "end" in attributes else None
    return torch.tensor(shape[slice(attributes.integer("start"), end)])


MOVEMENT: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda inputs, attributes: inputs[0].permute(
        attributes.integers("perm", list(range(inputs[0].dim()))[::-1])
    ),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": lambda inputs, attributes: torch.cat(inputs, attributes.integer("axis")),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": lambda inputs, _: inputs[0].repeat(ints(inputs[1])),
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Cast": _cast,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Range": lambda inputs, _: torch.arange(*(value.item() for value in inputs), dtype=inputs[0].dtype),
}
