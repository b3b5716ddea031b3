"""Quantization with a learned scale as two Triton kernels, one for each direction.

Imported on a GPU only, since it needs triton, which torch brings along there. What the kernels compute and keep is told
in ``coded_quantizer``. Numbers are written where they are used: triton compares global constants at every start.
"""

import triton
import triton.language as tl


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """Round half to even: adding 2 ** 23 leaves no bits for a fraction, and larger numbers have none."""
    shift = tl.where(x < 0, -8388608.0, 8388608.0)
    return tl.where(tl.abs(x) < 8388608.0, (x + shift) - shift, x)


@triton.jit  # type: ignore[untyped-decorator]
def scale_and_steps(x, parameter, log2: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the scale, and the values divided by it."""
    given = tl.load(parameter)
    if log2:
        # Powers of two are put together from their exponents: exact, and so is the product with the reciprocal.
        exponent = tl.minimum(tl.maximum(rounded(given), -126.0), 126.0).to(tl.int32)
        scale = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
        steps = x * ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    else:
        scale = given
        steps = tl.div_rn(x, tl.zeros_like(x) + given)
    return scale, steps


@triton.jit  # type: ignore[untyped-decorator]
def quantize_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    values,
    results,
    codes,
    parameter,
    zero_point,
    count,
    low: tl.constexpr,
    high: tl.constexpr,
    log2: tl.constexpr,
    block: tl.constexpr,
):
    """Write the quantized values, and one byte of each for the gradient."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = places < count
    x = tl.load(values + places, mask=valid, other=0.0).to(tl.float32)
    scale, steps = scale_and_steps(x, parameter, log2)
    shift = tl.load(zero_point).to(tl.float32)
    lowest, highest = low - shift, high - shift
    levels = rounded(steps)
    kept = tl.minimum(tl.maximum(levels, lowest), highest)
    rest = rounded((kept - steps) * 252.0)
    code = tl.where(levels < lowest, -128.0, tl.where(levels > highest, 127.0, rest))
    tl.store(results + places, (kept * scale).to(results.dtype.element_ty), mask=valid)
    tl.store(codes + places, code.to(tl.int8), mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def gradient_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    gradients,
    codes,
    by_values,
    by_scale,
    weight,
    parameter,
    zero_point,
    count,
    low: tl.constexpr,
    high: tl.constexpr,
    log2: tl.constexpr,
    block: tl.constexpr,
):
    """Write the gradient by the values, and of each block its part of the gradient by the scale."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = places < count
    gradient = tl.load(gradients + places, mask=valid, other=0.0)
    code = tl.load(codes + places, mask=valid, other=0).to(tl.float32)
    below, above = code < -127.0, code > 126.0
    tl.store(by_values + places, tl.where(below | above, 0.0, gradient).to(by_values.dtype.element_ty), mask=valid)
    shift = tl.load(zero_point).to(tl.float32)
    slope = tl.where(below, low - shift, tl.where(above, high - shift, code / 252.0))
    part = tl.sum(gradient.to(tl.float32) * slope, axis=0)
    if log2:
        scale, _ = scale_and_steps(slope, parameter, log2)
        part = part * scale * 0.6931471805599453
    tl.store(by_scale + tl.program_id(0), part * weight)
