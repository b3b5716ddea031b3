"""The names under which Q/DQ pairs exist, and the model-local functions that give the vendors' ones their meaning.

A node of a vendor's domain is written together with a function of the same name whose body is standard ONNX::

    com.vai.quantize.VAIQuantizeLinear (x, scale, zero_point) => y {
        y = QuantizeLinear <axis = @axis> (x, scale, zero_point)
    }

so that any onnxruntime runs it, and inlines it before it optimises. Where the vendor's own library is registered, its
kernel of that name is taken instead of the function.
"""

from dataclasses import dataclass

from quantry.recipe import VitisDialect

CONTRIB_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Dialect:
    """Names of one kind of Q/DQ pair.

    Attributes:
        domain: Domain of both operators.
        quantize: Operator type that makes integers.
        dequantize: Operator type that makes floats of them.
        is_native: Whether a stock onnxruntime has kernels of them, so that no function is needed.
        has_position: Whether nodes also carry ``bit_width`` and, of power-of-two scales, ``pos`` as strings, which is
            where the vendor's compilers look.
    """

    domain: str
    quantize: str
    dequantize: str
    is_native: bool = False
    has_position: bool = False

    @property
    def quantizer(self) -> tuple[str, str]:
        """Domain and type of the operator that makes integers."""
        return self.domain, self.quantize

    @property
    def dequantizer(self) -> tuple[str, str]:
        """Domain and type of the operator that makes floats."""
        return self.domain, self.dequantize


STANDARD = Dialect("", "QuantizeLinear", "DequantizeLinear", is_native=True)
CONTRIB = Dialect(CONTRIB_DOMAIN, "QuantizeLinear", "DequantizeLinear", is_native=True)
QUARK = Dialect("com.amd.quark", "ExtendedQuantizeLinear", "ExtendedDequantizeLinear")

VITIS: dict[VitisDialect, Dialect] = {
    VitisDialect.VAI: Dialect("com.vai.quantize", "VAIQuantizeLinear", "VAIDequantizeLinear", has_position=True),
    VitisDialect.VITIS: Dialect("com.vai.quantize", "VitisQuantizeLinear", "VitisDequantizeLinear", has_position=True),
    VitisDialect.QUARK: QUARK,
    VitisDialect.CONTRIB: CONTRIB,
}

_ATTRIBUTES = {True: 'axis: int = 1, bit_width: string = "8", pos: string = ""', False: "axis: int = 1"}


def thin_function(name: str, dialect: Dialect, body: Dialect) -> str:
    """Return a function of a vendor's dialect that is one native operator.

    Args:
        name: Operator type, one of the dialect's two.
        dialect: The vendor's dialect.
        body: The native dialect in which the function is written.
    """
    native = body.quantize if name == dialect.quantize else body.dequantize
    prefix = f"{body.domain}." if body.domain else ""
    return (
        f"{name} <{_ATTRIBUTES[dialect.has_position]}> (x, scale, zero_point) => (y) "
        f"{{ y = {prefix}{native} <axis: int = @axis> (x, scale, zero_point) }}"
    )
