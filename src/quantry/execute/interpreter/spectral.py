"""Fourier transforms. ONNX stores a complex number as two values along the last axis, a real one as one or none."""

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

_COMPLEX = 2


def short_time_transform(
    x: Tensor,
    *,
    frame_step: int,
    window: Sequence[float] | None = None,
    frame_length: int | None = None,
    onesided: int = 1,
) -> Tensor:
    """ONNX STFT: ``[batch, length]`` with at most one further axis becomes ``[batch, frames, bins, 2]``."""
    signal = x if x.dim() == 2 else _numbers(x)
    size = int(frame_length) if frame_length is not None else len(window or ())
    frames = signal.unfold(1, size, int(frame_step))
    if window is not None:
        frames = frames * torch.tensor(window, dtype=x.dtype, device=x.device)
    return _transformed(frames, size, -1, onesided=onesided, inverse=0)


def transform(
    x: Tensor, *, dft_length: int | None = None, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """ONNX DFT: the last axis has the numbers, another one is transformed."""
    axis = int(axis) % x.dim()
    if inverse and onesided:  # half a spectrum becomes real numbers
        size = 2 * (x.shape[axis] - 1) if dft_length is None else int(dft_length)
        return torch.fft.irfft(_numbers(x), size, axis)[..., None]
    size = x.shape[axis] if dft_length is None else int(dft_length)
    return _transformed(_numbers(x), size, axis, onesided=onesided, inverse=inverse)


def _numbers(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == _COMPLEX else x[..., 0]


def _transformed(x: Tensor, size: int, axis: int, *, onesided: int, inverse: int) -> Tensor:
    if inverse:
        return torch.view_as_real(torch.fft.ifft(x, size, axis))
    one = onesided and not x.is_complex()
    return torch.view_as_real(torch.fft.rfft(x, size, axis) if one else torch.fft.fft(x, size, axis))


def transform_refusal(node: ir.Node) -> str | None:
    """Return why a DFT cannot be computed, or None."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    has_axis = "axis" in node.attributes or (len(node.inputs) > 2 and node.inputs[2] is not None)
    if not has_axis and (shape is None or len(shape) != 3):
        return "DFT without an axis has no function in torch here, because the default depends on the opset"
    return None
