"""Lowerings of operators that move, reshape, join or select values."""

from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.torchfront.lowering.graph_writer import Call, Dimension, GraphWriter, fixed, meta_of

_END = np.iinfo(np.int64).max
"""torch and ONNX both write this as "to the end"."""


def identity(_: GraphWriter, call: Call) -> ir.Value:
    """Operators that only change how torch stores a tensor, and dropout, which does nothing at inference."""
    return call.first  # type: ignore[no-any-return]


def conversion(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.to`` and ``_to_copy``: a Cast if the type changes."""
    if call.first_meta.dtype == call.result.dtype:
        return identity(writer, call)
    return writer.cast(call.first, call.result.dtype)


def concatenate(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.cat``."""
    return writer.op("Concat", call["tensors"], {"axis": call.get("dim", 0)})


def stack(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.stack``."""
    axis = call.get("dim", 0)
    parts = [writer.op("Unsqueeze", [part, writer.ints([axis])]) for part in call["tensors"]]
    return writer.op("Concat", parts, {"axis": axis})


def split(writer: GraphWriter, call: Call) -> list[ir.Value]:
    """``aten.chunk``, ``split`` and ``split_with_sizes``: the sizes are those of the capture."""
    axis = call.get("dim", 0)
    parts = meta_of(call.node)
    sizes = fixed([part.shape[axis] for part in parts], "the sizes of the parts", call.node)
    return writer.multi("Split", [call.first, writer.ints(sizes)], len(sizes), {"axis": axis})


def slice_(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.slice``; a slice of everything is omitted."""
    axis, step = call.get("dim", 0), call.get("step", 1)
    start, end = call.get("start", 0), call.get("end", _END)
    if step == 1 and start == 0 and end == _END:
        return call.first  # type: ignore[no-any-return]
    ends = [writer.sizes([bound]) for bound in (start, end)]
    return writer.op("Slice", [call.first, *ends, writer.ints([axis]), writer.ints([step])])


def select(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.select``."""
    return writer.op("Gather", [call.first, writer.constant(call["index"], np.int64)], {"axis": call["dim"]})


def flip(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.flip``."""
    axes = call["dims"]
    bounds = ([-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes))
    return writer.op("Slice", [call.first, *map(writer.ints, bounds)])


def reshape(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.view`` and ``reshape``."""
    return reshaped(writer, call, call.get("size", call.get("shape")))


def reshaped(writer: GraphWriter, call: Call, sizes: list[Any]) -> ir.Value:
    """Reshape to sizes, some of which may be known only at run time."""
    source = call.first_meta.shape
    target: list[int | Dimension] = list(sizes)
    for index, size in enumerate(target):
        # In ONNX, 0 keeps a size, so no shape has to be computed.
        if isinstance(size, Dimension) and index < len(source) and bool(source[index] == call.result.shape[index]):
            target[index] = 0
    dynamic = [index for index, size in enumerate(target) if isinstance(size, Dimension)]
    if len(dynamic) == 1 and -1 not in target:
        target[dynamic[0]] = -1
    return writer.op("Reshape", [call.first, writer.sizes(target)])


def unflatten(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.unflatten``: one axis becomes several."""
    axis = call["dim"] % call.first_meta.dim()
    return reshaped(writer, call, [*[0] * axis, *call["sizes"], *_sizes_after(call, axis)])


def _sizes_after(call: Call, axis: int) -> list[int]:
    return fixed(call.first_meta.shape[axis + 1 :], "sizes after the axis", call.node)


def flatten(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.flatten``: leading sizes stay, the flattened axes are -1, and the rest is fixed."""
    rank = call.first_meta.dim()
    start, end = call.get("start_dim", 0) % max(rank, 1), call.get("end_dim", -1) % max(rank, 1)
    if rank and start == end:
        return call.first  # type: ignore[no-any-return]
    shape = call.first_meta.shape
    after = fixed(shape[end + 1 :], "sizes after the flattened axes", call.node)
    return writer.op("Reshape", [call.first, writer.ints([*[0] * start, -1, *after])])


def permute(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.permute``."""
    rank = call.first_meta.dim()
    return writer.op("Transpose", [call.first], {"perm": [axis % rank for axis in call["dims"]]})


def transpose(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.transpose`` and ``t``."""
    rank = call.first_meta.dim()
    order = list(range(rank))
    if rank < 2:
        return call.first  # type: ignore[no-any-return]
    first, second = call.get("dim0", 0) % rank, call.get("dim1", 1) % rank
    order[first], order[second] = second, first
    return writer.op("Transpose", [call.first], {"perm": order})


def squeeze(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.squeeze``; axes longer than 1 stay, as in torch."""
    shape = call.first_meta.shape
    wanted = call.get("dim", list(range(len(shape))))
    axes = [axis for axis in ([wanted] if isinstance(wanted, int) else wanted) if shape[axis] == 1]
    return writer.op("Squeeze", [call.first, writer.ints(axes)]) if axes else call.first


def unsqueeze(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.unsqueeze``."""
    return writer.op("Unsqueeze", [call.first, writer.ints([call["dim"]])])


def expand(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.expand``: torch keeps a size with -1, ONNX with 1."""
    sizes = [1 if isinstance(size, int) and size == -1 else size for size in call["size"]]
    return writer.op("Expand", [call.first, writer.sizes(sizes)])


def pad(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.pad`` and ``constant_pad_nd``: torch starts with the last axis."""
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}.get(call.get("mode", "constant"))
    if mode is None:
        raise ModelError(f"padding must be constant, reflect or replicate, got {call['mode']}; in {call.node.name}")
    amounts = fixed(call["pad"], "the padding", call.node)
    rank = call.first_meta.dim()
    before, after = [0] * rank, [0] * rank
    for index in range(len(amounts) // 2):
        before[rank - 1 - index], after[rank - 1 - index] = amounts[2 * index : 2 * index + 2]
    inputs = [call.first, writer.ints([*before, *after])]
    if mode == "constant":
        inputs.append(writer.constant(float(call.get("value", 0.0))))
    return writer.op("Pad", inputs, {"mode": mode})


def pixel_shuffle(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.pixel_shuffle``."""
    return writer.op("DepthToSpace", [call.first], {"blocksize": call["upscale_factor"], "mode": "CRD"})


def embedding(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.embedding``."""
    return writer.op("Gather", [call["weight"], call["indices"]], {"axis": 0})


def size(writer: GraphWriter, call: Call) -> int | Dimension:
    """``aten.sym_size``: a dynamic size."""
    known = call.first_meta.shape[call["dim"]]
    if isinstance(known, int):
        return known
    shape = writer.op("Shape", [call.first])
    return Dimension(writer.op("Gather", [shape, writer.ints([call["dim"]])], {"axis": 0}))


def region(writer: GraphWriter, call: Call) -> list[ir.Value]:
    """``quantry.region``: a quantized module; its graph replaces this node later."""
    return writer.multi(
        "Region", call["inputs"], len(meta_of(call.node)), {"key": call["key"]}, domain="quantry.region"
    )


LOWERINGS = {
    "region": region,
    **dict.fromkeys(
        (
            "contiguous",
            "clone",
            "detach",
            "alias",
            "dropout",
            "feature_dropout",
            "alpha_dropout",
            "feature_alpha_dropout",
            "lift_fresh_copy",
            "identity",
        ),
        identity,
    ),
    "to": conversion,
    "_to_copy": conversion,
    "cat": concatenate,
    "stack": stack,
    "chunk": split,
    "split": split,
    "split_with_sizes": split,
    "slice": slice_,
    "select": select,
    "flip": flip,
    "view": reshape,
    "unflatten": unflatten,
    "reshape": reshape,
    "_unsafe_view": reshape,
    "flatten": flatten,
    "permute": permute,
    "transpose": transpose,
    "t": transpose,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "pad": pad,
    "constant_pad_nd": pad,
    "pixel_shuffle": pixel_shuffle,
    "embedding": embedding,
    "sym_size": size,
}
