"""Functions for the 32-bit integers that QuantizeLinear does not have.

Computed in float64, where 32-bit integers are exact: ``q = saturate(round_half_even(x / scale) + zero_point)``.
"""

import onnx_ir as ir

from quantry.emit.element_type import ONNX_TYPE
from quantry.recipe import DataType

_DOUBLE = ir.DataType.DOUBLE.value
_FLOAT = ir.DataType.FLOAT.value


def wide_function(name: str, dtype: DataType, *, quantizes: bool) -> str:
    """Return the function of a 32-bit type.

    Args:
        name: Operator type.
        dtype: The integer type.
        quantizes: Whether it makes integers; otherwise it makes floats of them.
    """
    head = f"{name} <axis: int = 1> (x, scale, zero_point) => (y)"
    if not quantizes:
        return f"""{head} {{
            wide = Cast <to = {_DOUBLE}> (x)
            offset = Cast <to = {_DOUBLE}> (zero_point)
            level = Sub (wide, offset)
            narrow = Cast <to = {_FLOAT}> (level)
            y = Mul (narrow, scale)
        }}"""
    return f"""{head} {{
        wide = Cast <to = {_DOUBLE}> (x)
        step = Cast <to = {_DOUBLE}> (scale)
        offset = Cast <to = {_DOUBLE}> (zero_point)
        ratio = Div (wide, step)
        level = Round (ratio)
        shifted = Add (level, offset)
        low = Constant <value = double {{{dtype.lowest}}}> ()
        high = Constant <value = double {{{dtype.highest}}}> ()
        bounded = Clip (shifted, low, high)
        y = Cast <to = {ONNX_TYPE[dtype].value}> (bounded)
    }}"""
