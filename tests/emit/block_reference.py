"""Block number formats in numpy, written from their definitions and not from the functions under test."""

import ml_dtypes
import numpy as np

SMALL_FLOATS = {
    "mxfp8e5m2": (ml_dtypes.float8_e5m2, 57344.0, 15),
    "mxfp8e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8),
    "mxfp6e3m2": (ml_dtypes.float6_e3m2fn, 28.0, 4),
    "mxfp6e2m3": (ml_dtypes.float6_e2m3fn, 7.5, 2),
    "mxfp4e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 2),
}
STEP_BITS = {"bfp16": 6, "mx9": 6, "mx6": 3, "mx4": 1}


def exponent_field(x: np.ndarray) -> np.ndarray:
    """Return the unbiased exponent as the bits of float32 say it; -127 for zeros and denormals."""
    return ((np.abs(x).astype(np.float32).view(np.uint32) >> 23) & 0xFF).astype(int) - 127


def reference(name: str, x: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Return x after rounding to a block format."""
    moved = np.moveaxis(x, axis, -1)
    length = moved.shape[-1]
    filled = np.zeros((*moved.shape[:-1], -(-length // size) * size), np.float32)
    filled[..., :length] = moved
    blocks = filled.reshape(-1, size)
    rounded = np.stack([_block(name, block) for block in blocks]) if len(blocks) else blocks
    with np.errstate(over="ignore"):  # the lowest integer of MXINT8 at the largest exponent is beyond float32
        return np.moveaxis(rounded.reshape(filled.shape)[..., :length], -1, axis).astype(np.float32)


def _block(name: str, block: np.ndarray) -> np.ndarray:
    finite = np.isfinite(block)
    if name != "bfp16" and not finite.all():
        return np.full_like(block, np.nan)
    values = np.where(finite, block, np.float32(0))
    if name in ("mx4", "mx6", "mx9"):
        values = np.where(exponent_field(values) == -127, np.float32(0), values)
    shared = int(exponent_field(values).max())
    wide = values.astype(np.float64)
    if name == "bfp16":
        return np.where(finite, _even(wide, shared, STEP_BITS[name]), block)
    if name in STEP_BITS:
        pairs = wide.reshape(-1, 2)
        own = [shared - min(shared - int(exponent_field(pair).max()), 1) for pair in pairs]
        return np.concatenate([_even(pair, e, STEP_BITS[name]) for pair, e in zip(pairs, own, strict=True)])
    if name == "mxint8":
        step = np.ldexp(1.0, shared - 6)
        return np.clip(np.rint(wide / step), -128, 127) * step
    dtype, limit, largest = SMALL_FLOATS[name]
    scale = np.ldexp(1.0, max(shared - largest, -127))
    return np.clip(wide / scale, -limit, limit).astype(dtype).astype(np.float64) * scale


def _even(values: np.ndarray, exponent: int, bits: int) -> np.ndarray:
    step = np.ldexp(1.0, exponent - bits)
    limit = np.ldexp(1.0, exponent + 1) - step
    return np.clip(np.rint(values / step) * step, -limit, limit)
