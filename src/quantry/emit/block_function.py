"""Block number formats as functions in standard operators, bit-exact.

A tensor is cut along one axis into blocks that share an exponent; the last block is filled up with zeros. With E the
exponent of the largest magnitude of a block (that of zeros and denormals counts as -127)::

    BFP16           x -> round(x / step) * step,  step = 2**(E - 6),  within +-(2**(E + 1) - step)
    MX9, MX6, MX4   the same with steps 2**(E - 6), 2**(E - 3), 2**(E - 1), each halved for a pair of neighbours both
                    below 2**E; denormals are zero
    MXINT8          x -> round(x / scale * 64) / 64 * scale,  scale = 2**E,  integers within -128..127
    MXFP*           x -> element(x / scale) * scale,  scale = 2**(E - exponent of the element type's largest value)

Rounding is half to even and elements saturate. Of BFP16, NaN and infinities pass through and do not count in E; a block
of the other formats that has one is NaN as a whole, because the shared exponent itself has no other way to say so.

All is computed in float64, which holds every intermediate value exactly. The exponent is the floor of a logarithm,
which may be one off beside a power of two, and is then put right by comparing with the powers themselves.
"""

from dataclasses import dataclass

from quantry.recipe import DataType

BFP_OPERATOR = "BFPQuantizeDequantize"
MX_OPERATOR = "MXQuantizeDequantize"

_LAST = 9223372036854775807
_REDUCE_AXES_ARE_INPUTS, _RESHAPE_KEEPS_ZERO = 18, 14


@dataclass(frozen=True)
class Element:
    """A small float type inside an MX block.

    Attributes:
        name: Its name in the ``element_dtype`` attribute.
        mantissa: Explicit bits of the mantissa.
        smallest: Exponent of the smallest normal value.
        largest: Exponent of the largest value.
        limit: The largest value.
    """

    name: str
    mantissa: int
    smallest: int
    largest: int
    limit: float


ELEMENTS = {
    DataType.MXFP8E5M2: Element("fp8_e5m2", 2, -14, 15, 57344.0),
    DataType.MXFP8E4M3: Element("fp8_e4m3", 3, -6, 8, 448.0),
    DataType.MXFP6E3M2: Element("fp6_e3m2", 2, -2, 4, 28.0),
    DataType.MXFP6E2M3: Element("fp6_e2m3", 3, 0, 2, 7.5),
    DataType.MXFP4E2M1: Element("fp4_e2m1", 1, 0, 2, 6.0),
}
BIT_WIDTH = {DataType.BFP16: 16, DataType.MX9: 16, DataType.MX6: 13, DataType.MX4: 11}

_BFP_ATTRIBUTES = (
    'bfp_method: string = "to_bfp", axis: int = 1, bit_width: int = 16, block_size: int = 8, rounding_mode: int = 2, '
    "sub_block_size: int = 2, sub_block_shift_bits: int = 1, convert_to_bfloat_before_bfp: int = 0"
)
_MX_ATTRIBUTES = 'element_dtype: string = "int8", axis: int = 1, block_size: int = 32, rounding_mode: int = 2'


def block_function(dtype: DataType, opset: int) -> str:
    """Return the function of a block format in ONNX text.

    Args:
        dtype: The format.
        opset: Operator set of the model, which its body must use.
    """
    largest = _shared_exponent(opset)
    if dtype == DataType.BFP16:
        return _function(BFP_OPERATOR, _BFP_ATTRIBUTES, opset, _LEAVE_SPECIAL + largest + _MANTISSA + _BFP)
    if dtype in BIT_WIDTH:
        body = _spoil_special(opset) + _FLUSH + largest + _MANTISSA + _sub_blocks(opset) + _SPOIL
        return _function(BFP_OPERATOR, _BFP_ATTRIBUTES, opset, body)
    element = _MXINT8 if dtype == DataType.MXINT8 else _small_float(ELEMENTS[dtype])
    body = _spoil_special(opset) + "values = Identity (plain_values)\n" + largest + element + _SPOIL
    return _function(MX_OPERATOR, _MX_ATTRIBUTES, opset, body)


def _function(name: str, attributes: str, opset: int, body: str) -> str:
    reshape = "Reshape <allowzero = 1>" if opset >= _RESHAPE_KEEPS_ZERO else "Reshape"
    text = f"{name} <{attributes}> (x) => (y) {{ {_TO_BLOCKS} {body} {_FROM_BLOCKS} }}"
    return text.replace("Reshape (", f"{reshape} (")


# From x to `blocks`: float64 [outer, blocks, block, inner], with zeros behind the end of the axis.
_TO_BLOCKS = f"""
    shape = Shape (x)
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [{_LAST}]> ()
    axis_value = Constant <value_int: int = @axis> ()
    axis = Reshape (axis_value, one)
    size_value = Constant <value_int: int = @block_size> ()
    size = Reshape (size_value, one)
    behind = Add (axis, one)
    lengths_before = Slice (shape, first, axis)
    length = Slice (shape, axis, behind)
    lengths_after = Slice (shape, behind, last)
    factors_before = Concat <axis = 0> (one, lengths_before)
    factors_after = Concat <axis = 0> (one, lengths_after)
    outer = ReduceProd <keepdims = 1> (factors_before)
    inner = ReduceProd <keepdims = 1> (factors_after)
    flat_shape = Concat <axis = 0> (outer, length, inner)
    exact = Cast <to = 11> (x)
    flat = Reshape (exact, flat_shape)
    rest = Mod (length, size)
    lacking_or_size = Sub (size, rest)
    lacking = Mod (lacking_or_size, size)
    pads = Concat <axis = 0> (first, first, first, first, lacking, first)
    padded = Pad (flat, pads)
    total = Add (length, lacking)
    count = Div (total, size)
    block_shape = Concat <axis = 0> (outer, count, size, inner)
    blocks = Reshape (padded, block_shape)
    infinite = IsInf (blocks)
    undefined = IsNaN (blocks)
    special = Or (infinite, undefined)
    nothing = Constant <value = double {{0.0}}> ()
    unit = Constant <value = double {{1.0}}> ()
    base = Constant <value = double {{2.0}}> ()
    log_base = Constant <value = double {{0.6931471805599453}}> ()
"""

# From `result`, shaped like `blocks`, to y.
_FROM_BLOCKS = """
    joined_shape = Concat <axis = 0> (outer, total, inner)
    joined = Reshape (result, joined_shape)
    cut = Slice (joined, first, length, one)
    shaped = Reshape (cut, shape)
    y = Cast <to = 1> (shaped)
"""

_LEAVE_SPECIAL = """
    values = Where (special, nothing, blocks)
"""

_SPOIL = """
    nan = Div (nothing, nothing)
    result = Where (spoilt, nan, finite_result)
"""

# Denormals of float32 are zero.
_FLUSH = f"""
    unflushed_magnitude = Abs (plain_values)
    normal = Constant <value = double {{{2.0**-126!r}}}> ()
    denormal = Less (unflushed_magnitude, normal)
    values = Where (denormal, nothing, plain_values)
"""

# From the attribute: bits of the mantissa, sign left out, and how far below the exponent the last of them lies.
_MANTISSA = """
    width_value = Constant <value_int: int = @bit_width> ()
    width = Cast <to = 11> (width_value)
    overhead = Constant <value = double {10.0}> ()
    digits = Sub (width, overhead)
"""

_ROUND = """
    ratio = Div (values, step)
    level = Round (ratio)
    rounded = Mul (level, step)
    limit = Sub (end, step)
    negative_limit = Neg (limit)
    at_most = Min (rounded, limit)
    bounded = Max (at_most, negative_limit)
"""

_BFP = f"""
    step_exponent = Sub (exponent, digits)
    step = Pow (base, step_exponent)
    end_exponent = Add (exponent, unit)
    end = Pow (base, end_exponent)
    {_ROUND}
    result = Where (special, blocks, bounded)
"""

_MXINT8 = f"""
    scale_bits = Constant <value = double {{6.0}}> ()
    step_exponent = Sub (exponent, scale_bits)
    step = Pow (base, step_exponent)
    ratio = Div (values, step)
    level = Round (ratio)
    lowest = Constant <value = double {{{DataType.INT8.lowest}.0}}> ()
    highest = Constant <value = double {{{DataType.INT8.highest}.0}}> ()
    bounded = Clip (level, lowest, highest)
    finite_result = Mul (bounded, step)
"""


def _exponent(source: str, target: str, smallest: int) -> str:
    """Return the floor of the binary logarithm of magnitudes, at least `smallest`; names are prefixed by the target."""
    p = target
    return f"""
        {p}_floor = Constant <value = double {{{2.0**smallest!r}}}> ()
        {p}_safe = Max ({source}, {p}_floor)
        {p}_log = Log ({p}_safe)
        {p}_ratio = Div ({p}_log, log_base)
        {p}_guess = Floor ({p}_ratio)
        {p}_power = Pow (base, {p}_guess)
        {p}_above = Greater ({p}_power, {p}_safe)
        {p}_less = Cast <to = 11> ({p}_above)
        {p}_lowered = Sub ({p}_guess, {p}_less)
        {p}_next = Add ({p}_lowered, unit)
        {p}_next_power = Pow (base, {p}_next)
        {p}_below = LessOrEqual ({p}_next_power, {p}_safe)
        {p}_more = Cast <to = 11> ({p}_below)
        {target} = Add ({p}_lowered, {p}_more)
    """


def _reduce_max(source: str, target: str, axis: int, opset: int) -> str:
    if opset < _REDUCE_AXES_ARE_INPUTS:
        return f"{target} = ReduceMax <axes = [{axis}], keepdims = 1> ({source})\n"
    return (
        f"{target}_axis = Constant <value_ints = [{axis}]> ()\n"
        f"{target} = ReduceMax <keepdims = 1> ({source}, {target}_axis)\n"
    )


def _shared_exponent(opset: int) -> str:
    return (
        "magnitude = Abs (values)\n"
        + _reduce_max("magnitude", "largest", 2, opset)
        + _exponent("largest", "exponent", -127)
    )


def _spoil_special(opset: int) -> str:
    """Return what marks blocks with NaN or infinity; `values` is then the rest, before denormals are looked at."""
    return (
        "special_number = Cast <to = 11> (special)\n"
        + _reduce_max("special_number", "special_block", 2, opset)
        + "half = Constant <value = double {0.5}> ()\n"
        + "spoilt = Greater (special_block, half)\n"
        + "plain_values = Where (special, nothing, blocks)\n"
    )


def _sub_blocks(opset: int) -> str:
    """Return the rounding of pairs, which have half the step where both are below the block's exponent."""
    return (
        """
        pair = Constant <value_int: int = @sub_block_size> ()
        pair_size = Reshape (pair, one)
        pair_count = Div (size, pair_size)
        pair_shape = Concat <axis = 0> (outer, count, pair_count, pair_size, inner)
        pairs = Reshape (magnitude, pair_shape)
        """
        + _reduce_max("pairs", "pair_largest", 3, opset)
        + _exponent("pair_largest", "pair_exponent", -127)
        + """
        shared_shape = Concat <axis = 0> (outer, count, one, one, inner)
        shared = Reshape (exponent, shared_shape)
        distance = Sub (shared, pair_exponent)
        shift = Min (distance, unit)
        own_exponent = Sub (shared, shift)
        spread = Expand (own_exponent, pair_shape)
        element_exponent = Reshape (spread, block_shape)
        step_exponent = Sub (element_exponent, digits)
        step = Pow (base, step_exponent)
        end_exponent = Add (element_exponent, unit)
        end = Pow (base, end_exponent)
        """
        + _ROUND
        + "finite_result = Identity (bounded)\n"
    )


def _small_float(element: Element) -> str:
    """Return the rounding to a small float type behind a shared scale."""
    return (
        f"""
        element_largest = Constant <value = double {{{element.largest}.0}}> ()
        unbounded = Sub (exponent, element_largest)
        least = Constant <value = double {{-127.0}}> ()
        scale_exponent = Max (unbounded, least)
        scale = Pow (base, scale_exponent)
        scaled = Div (values, scale)
        scaled_magnitude = Abs (scaled)
        """
        + _exponent("scaled_magnitude", "own_exponent", element.smallest)
        + f"""
        digits = Constant <value = double {{{element.mantissa}.0}}> ()
        step_exponent = Sub (own_exponent, digits)
        step = Pow (base, step_exponent)
        ratio = Div (scaled, step)
        level = Round (ratio)
        rounded = Mul (level, step)
        limit = Constant <value = double {{{element.limit}}}> ()
        negative_limit = Neg (limit)
        bounded = Clip (rounded, negative_limit, limit)
        finite_result = Mul (bounded, scale)
        """
    )
