"""Triton kernels of AdaRound and AdaQuant; `quantry.tune.gpu_rows` calls them and documents the loss.

Imported on a GPU only, because it needs triton. Arrays of weights are planes of one tensor, ``[planes, groups * rows,
padded]``; arrays with one number per row are planes of another.
"""

import triton
import triton.language as tl

VALUE = tl.constexpr(0)
FIRST = tl.constexpr(1)
SECOND = tl.constexpr(2)
FLOOR = tl.constexpr(3)
CROSS = tl.constexpr(4)
SCALE = tl.constexpr(5)
LOWEST = tl.constexpr(6)
HIGHEST = tl.constexpr(7)
WEIGHT = tl.constexpr(8)
"""The first of two planes: a step reads one and writes the other, because its products need all columns of a row."""

BIAS = tl.constexpr(0)
"""Likewise the first of two."""
BIAS_FIRST = tl.constexpr(2)
BIAS_SECOND = tl.constexpr(3)
TARGET = tl.constexpr(4)

_WHOLE = tl.constexpr(8388608.0)
_WHOLE_DOUBLE = tl.constexpr(6755399441055744.0)


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """Round half to even: adding 2 ** 23 leaves no bits for a fraction; larger numbers have none anyway."""
    shift = tl.where(x < 0, -_WHOLE, _WHOLE)
    return tl.where(tl.abs(x) < _WHOLE, (x + shift) - shift, x)


@triton.jit
def clipped(x, low, high):  # type: ignore[no-untyped-def]
    """Clip to bounds."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def rounded_bias(bias, row, count, grid):  # type: ignore[no-untyped-def]
    """Return biases on their grid; a scale of 0 leaves them unchanged."""
    scale = tl.load(grid + row)
    levels = bias.to(tl.float64) / tl.where(scale > 0, scale, 1.0)
    levels = (levels + _WHOLE_DOUBLE) - _WHOLE_DOUBLE
    levels = clipped(levels, tl.load(grid + count + row), tl.load(grid + 2 * count + row))
    return tl.where(scale > 0, levels.to(tl.float32) * scale.to(tl.float32), bias)


@triton.jit
def adam(value, first, second, slope, rate, spread):  # type: ignore[no-untyped-def]
    """Return a value and its moments after a step of Adam."""
    first = 0.9 * first + 0.1 * slope
    second = 0.999 * second + 0.001 * slope * slope
    return value - rate * tl.div_rn(first, tl.sqrt_rn(second * spread) + 1e-8), first, second


@triton.jit  # type: ignore[untyped-decorator]
def written(value, floor, scale, low, high, rounds: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the weights of trained values: between two integers for AdaRound, on the grid for AdaQuant."""
    if rounds:
        up = clipped(1.2 / (1.0 + tl.exp(-value)) - 0.1, 0.0, 1.0)
        return clipped(floor + up, low, high) * scale
    return clipped(rounded(tl.div_rn(value, scale)), low, high) * scale


@triton.jit  # type: ignore[untyped-decorator]
def by_value(slope, value, floor, scale, low, high, beta, strength, rounds: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    """Return the derivative with respect to the trained values from that with respect to the weights."""
    if rounds:
        sigmoid = 1.0 / (1.0 + tl.exp(-value))
        up = clipped(1.2 * sigmoid - 0.1, 0.0, 1.0)
        level = floor + up
        slope = tl.where((level >= low) & (level <= high), slope * scale, 0.0)
        if strength != 0.0:
            centered = 2.0 * up - 1.0
            away = tl.exp2((beta - 1.0) * tl.log2(tl.maximum(tl.abs(centered), 1e-30)))
            slope -= 2.0 * beta * strength * tl.where(centered < 0, -away, away)
        return tl.where((up > 0.0) & (up < 1.0), slope * sigmoid * (1.0 - sigmoid) * 1.2, 0.0)
    level = rounded(tl.div_rn(value, scale))
    return tl.where((level >= low) & (level <= high), slope, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def row_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    planes, gram, mean, vectors, bias_grid, schedule, losses, steps, rows,
    width: tl.constexpr, rounds: tl.constexpr, bias_moves: tl.constexpr,
):  # fmt: skip
    """Make all steps of a schedule for one row, whose Gram matrix stays in registers."""
    row = tl.program_id(0)
    count = tl.num_programs(0)
    plane = count.to(tl.int64) * width
    column = tl.arange(0, width)
    address = planes + row.to(tl.int64) * width + column
    matrix = gram + (row // rows).to(tl.int64) * width * width
    matrix = tl.load(matrix + column[:, None] * width + column[None, :])
    average = tl.load(mean + (row // rows) * width + column)
    value, first, second = tl.load(address), tl.load(address + FIRST * plane), tl.load(address + SECOND * plane)
    floor, cross = tl.load(address + FLOOR * plane), tl.load(address + CROSS * plane)
    scale = tl.load(address + SCALE * plane)
    low, high = tl.load(address + LOWEST * plane), tl.load(address + HIGHEST * plane)
    bias, target = tl.load(vectors + row), tl.load(vectors + TARGET * count + row)
    bias_first, bias_second = tl.load(vectors + BIAS_FIRST * count + row), tl.load(vectors + BIAS_SECOND * count + row)
    for number in range(steps):
        entry = schedule + number * 4
        rate, spread, beta, strength = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
        weight = written(value, floor, scale, low, high, rounds)
        product = tl.sum(matrix * weight[:, None], 0)
        loss = tl.sum(weight * (product - 2.0 * cross), 0)
        slope = 2.0 * (product - cross)
        if not rounds:
            shift = tl.sum(weight * average, 0) + rounded_bias(bias, row, count, bias_grid) - target
            loss += shift * shift
            slope += 2.0 * shift * average
            if bias_moves:
                bias, bias_first, bias_second = adam(bias, bias_first, bias_second, 2.0 * shift, rate, spread)
        slope = by_value(slope, value, floor, scale, low, high, beta, strength, rounds)
        value, first, second = adam(value, first, second, slope, rate, spread)
        tl.store(losses + number * count + row, loss)
    tl.store(address, value)
    tl.store(address + FIRST * plane, first)
    tl.store(address + SECOND * plane, second)
    tl.store(vectors + row, bias)
    tl.store(vectors + BIAS_FIRST * count + row, bias_first)
    tl.store(vectors + BIAS_SECOND * count + row, bias_second)


@triton.jit  # type: ignore[untyped-decorator]
def products(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    weights, matrix, average, inside, column, padded,
    means: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Return rows of weights times some columns of a matrix, and times the mean."""
    product = tl.zeros((tall, wide), tl.float32)
    shift = tl.zeros((tall, deep), tl.float32)
    for start in range(0, padded, deep):
        line = start + tl.arange(0, deep)
        factor = tl.load(weights + line[None, :], mask=inside[:, None], other=0.0)
        right = tl.load(matrix + line[:, None] * padded + column[None, :])
        product = tl.dot(factor, right, product, input_precision=precision)
        if means:
            shift += factor * tl.load(average + line)[None, :]
    return product, tl.sum(shift, 1)


@triton.jit
def weights_at(own, now, plane, mask):  # type: ignore[no-untyped-def]
    """Load all planes of some weights."""
    return (
        tl.load(own, mask=mask, other=0.0),
        tl.load(own + FIRST * plane, mask=mask, other=0.0),
        tl.load(own + SECOND * plane, mask=mask, other=0.0),
        tl.load(own + FLOOR * plane, mask=mask, other=0.0),
        tl.load(own + CROSS * plane, mask=mask, other=0.0),
        tl.load(own + SCALE * plane, mask=mask, other=1.0),
        tl.load(own + LOWEST * plane, mask=mask, other=0.0),
        tl.load(own + HIGHEST * plane, mask=mask, other=0.0),
        tl.load(now, mask=mask, other=0.0),
    )


@triton.jit(do_not_specialize=["offset", "odd", "rows"])  # type: ignore[untyped-decorator]
def step_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    planes, gram, mean, vectors, bias_grid, schedule, position, losses, offset, odd, rows, padded,
    rounds: tl.constexpr, bias_moves: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Make one step for some rows and columns."""
    across, down, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = rows * tl.num_programs(2)
    plane = count.to(tl.int64) * padded
    number = tl.load(position) + offset
    local = down * tall + tl.arange(0, tall)
    inside = local < rows
    row = group * rows + tl.where(inside, local, 0)
    column = across * wide + tl.arange(0, wide)
    mask = inside[:, None]
    begin = planes + row[:, None].to(tl.int64) * padded
    own = begin + column[None, :]
    now = own + (WEIGHT + odd) * plane
    # With small tiles, what is needed after the product is loaded while it is computed.
    early: tl.constexpr = tall * wide <= 1024
    if early:
        value, first, second, floor, cross, scale, low, high, weight = weights_at(own, now, plane, mask)
    entry = schedule + number * 4
    rate, spread, beta, strength = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    product, shift = products(
        begin + (WEIGHT + odd) * plane, gram + group.to(tl.int64) * padded * padded, mean + group * padded, inside,
        column, padded, not rounds, tall, wide, deep, precision,
    )  # fmt: skip
    if not early:
        value, first, second, floor, cross, scale, low, high, weight = weights_at(own, now, plane, mask)
    loss = tl.sum(tl.where(mask, weight * (product - 2.0 * cross), 0.0))
    slope = 2.0 * (product - cross)
    if not rounds:
        shift = step_bias(vectors, bias_grid, row, count, shift, inside, rate, spread, odd, across == 0, bias_moves)
        slope += 2.0 * shift[:, None] * tl.load(mean + group * padded + column)[None, :]
        loss += tl.where(across == 0, tl.sum(tl.where(inside, shift * shift, 0.0)), 0.0)
    slope = by_value(slope, value, floor, scale, low, high, beta, strength, rounds)
    value, first, second = adam(value, first, second, slope, rate, spread)
    tl.store(own + (WEIGHT + 1 - odd) * plane, written(value, floor, scale, low, high, rounds), mask=mask)
    tl.store(own, value, mask=mask)
    tl.store(own + FIRST * plane, first, mask=mask)
    tl.store(own + SECOND * plane, second, mask=mask)
    place = (group * tl.num_programs(1) + down) * tl.num_programs(0) + across
    tl.store(losses + number * tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) + place, loss)


@triton.jit  # type: ignore[untyped-decorator]
def step_bias(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    vectors, bias_grid, row, count, mean, inside, rate, spread, odd, writes, bias_moves: tl.constexpr
):
    """Return the error of the means of some rows; train their biases, and store them if `writes` is set."""
    bias = tl.load(vectors + odd * count + row)
    shift = mean + rounded_bias(bias, row, count, bias_grid) - tl.load(vectors + TARGET * count + row)
    mask = inside & writes
    if bias_moves:
        one, two = vectors + BIAS_FIRST * count + row, vectors + BIAS_SECOND * count + row
        bias, first, second = adam(bias, tl.load(one), tl.load(two), 2.0 * shift, rate, spread)
        tl.store(one, first, mask=mask)
        tl.store(two, second, mask=mask)
    tl.store(vectors + (1 - odd) * count + row, bias, mask=mask)
    return shift
