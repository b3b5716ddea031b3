"""How far the NPU's mean over a kernel is from the true one.

The NPU divides a sum by the kernel's size s with a fixed-point reciprocal ``k / 2**n``, so its mean is the true one
times ``s * k / 2**n``. Some kernel sizes have a reciprocal wired in; for others the best one with few bits is taken.
"""

import math

import onnx_ir as ir

_FIXED = {3: (7, 64), 5: (10, 256), 6: (7, 256), 7: (21, 1024), 14: (21, 4096)}
_LARGEST_SIDE = 255


def pool_factor(height: int, width: int) -> float:
    """Return what the mean over a kernel must be multiplied by to get the NPU's.

    Only square kernels up to a side of 255 have one other than 1.

    Args:
        height: Height of the kernel.
        width: Its width.

    Example:
        >>> pool_factor(7, 7)
        1.0048828125
    """
    if height != width or height > _LARGEST_SIDE:
        return 1.0
    size = height * width
    if height in _FIXED:
        numerator, denominator = _FIXED[height]
        return size * numerator / denominator
    shifts = range(7 + math.ceil(math.log2(size)))
    candidates = [(round(2**shift / size), 2**shift) for shift in shifts]
    # The first of equally good ones: the reciprocal with the fewest bits.
    numerator, denominator = min(candidates, key=lambda pair: abs(pair[0] / pair[1] - 1 / size))
    return float(size * numerator / denominator)


def spatial_size(value: ir.Value | None) -> tuple[int, int] | None:
    """Return height and width of a tensor [N, C, H, W], or None where they are unknown or it has another rank."""
    if value is None or value.shape is None or len(value.shape) != 4:
        return None
    height, width = value.shape[2], value.shape[3]
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None
