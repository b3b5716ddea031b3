"""Operators that sample images at computed positions, or put patches together."""

from collections.abc import Sequence

import onnx_ir as ir
from torch import Tensor
from torch.nn import functional

_MODES = {"linear": "bilinear", "cubic": "bicubic"}
"""Since opset 20 the modes have names without a number of axes."""


def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    """ONNX GridSample."""
    return functional.grid_sample(x, grid, _MODES.get(mode, mode), padding_mode, bool(align_corners))


def grid_refusal(node: ir.Node) -> str | None:
    """Return why a GridSample cannot be computed, or None."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    mode = node.attributes.get_string("mode", "linear")
    if shape is not None and (len(shape) not in (4, 5) or (len(shape) == 5 and "cubic" in mode)):
        return f"GridSample by mode {mode} over {len(shape) - 2} axes has no function in torch here"
    return None


def column_to_image(
    x: Tensor,
    *,
    image_shape: Sequence[int],
    block_shape: Sequence[int],
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> Tensor:
    """ONNX Col2Im of two spatial axes with the same padding on both sides."""
    return functional.fold(x, list(image_shape), list(block_shape), list(dilations), list(pads[:2]), list(strides))


def column_refusal(node: ir.Node) -> str | None:
    """Return why a Col2Im cannot be computed, or None."""
    pads = list(node.attributes.get_ints("pads", (0, 0, 0, 0)))
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    if len(pads) != 4 or pads[:2] != pads[2:] or (shape is not None and shape[0] != 2):
        return "Col2Im over other than two axes, or with uneven pads, has no function in torch here"
    return None
