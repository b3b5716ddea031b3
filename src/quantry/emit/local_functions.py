"""Model-local functions: what gives operators of vendors' domains their meaning in stock onnxruntime.

A node of a vendor's domain is written together with a function of the same name whose body is standard ONNX::

    com.vai.quantize.VAIQuantizeLinear (x, scale, zero_point) => y {
        y = QuantizeLinear <axis = @axis> (x, scale, zero_point)
    }

so any onnxruntime runs it, and inlines it before optimizing. If the vendor's library is registered, its kernel with
that name is used instead of the function.

`Dialect` lists the names of Q/DQ pairs. 32-bit integers, which QuantizeLinear does not have, are computed in float64,
where they are exact: ``q = clip(round_half_even(x / scale) + zero_point)``.
"""

from dataclasses import dataclass

import onnx
import onnx.parser
import onnx_ir as ir

from quantry.emit.graph_editor import ONNX_TYPE
from quantry.recipe import DataType, VitisDialect

CONTRIB_DOMAIN = "com.microsoft"


def add_function(model: ir.Model, domain: str, text: str, overload: str = "") -> None:
    """Parse a function, add it to the model and import the domains it needs.

    A body must import the operator set of its model, because onnxruntime uses that one.

    Args:
        model: The model.
        domain: Domain of the function.
        text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
        overload: Distinguishes several functions with one name.
    """
    imports = {"": model.opset_imports[""]}
    if f"{CONTRIB_DOMAIN}." in text:
        imports[CONTRIB_DOMAIN] = 1
        model.opset_imports.setdefault(CONTRIB_DOMAIN, 1)
    model.opset_imports.setdefault(domain, 1)
    described = ", ".join(f'"{name}" : {version}' for name, version in imports.items())
    marked = f', overload: "{overload}"' if overload else ""
    proto = onnx.parser.parse_function(f'<domain: "{domain}", opset_import: [{described}]{marked}> {text}')
    # The parser does not name nodes; onnx-ir would, with a process-wide counter that makes names irreproducible.
    for index, node in enumerate(proto.node):
        node.name = f"{proto.name}_{node.op_type}_{index}"
    function = ir.serde.deserialize_function(proto)
    model.functions[function.identifier()] = function


_FIRST_IR_WITH_OVERLOADS = 10


class FunctionCollector:
    """Collects which vendor operator needs which body, and adds the functions at the end.

    Number formats share operator names: ExtendedQuantizeLinear returns int8, int32 or bfloat16, depending on its zero
    point, but the body of a function has fixed types. If a model needs several bodies of one name, each gets an
    overload, except the body with the empty kind; the only body of a name has none.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._bodies: dict[tuple[str, str], dict[str, str]] = {}
        self._readers: list[tuple[ir.Node, str]] = []

    def use(self, node: ir.Node, text: str, kind: str = "") -> None:
        """Register the function that defines a node.

        Args:
            node: The node, in the vendor's domain.
            text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
            kind: Distinguishes bodies of the same operator.
        """
        self._bodies.setdefault((node.domain, node.op_type), {})[kind] = text
        self._readers.append((node, kind))

    def finish(self) -> None:
        """Add the functions to the model."""
        overloads = {
            (*operator, kind): "" if len(kinds) == 1 else kind
            for operator, kinds in self._bodies.items()
            for kind in kinds
        }
        for node, kind in self._readers:
            node.overload = overloads[(node.domain, node.op_type, kind)]
        for (domain, op_type), kinds in self._bodies.items():
            for kind, text in kinds.items():
                add_function(self._model, domain, text, overloads[(domain, op_type, kind)])
        if any(overloads.values()):
            self._model.ir_version = max(self._model.ir_version, _FIRST_IR_WITH_OVERLOADS)


_DOUBLE = ir.DataType.DOUBLE.value
_FLOAT = ir.DataType.FLOAT.value


def wide_function(name: str, dtype: DataType, *, quantizes: bool) -> str:
    """Return the function of a 32-bit type.

    Args:
        name: Operator type.
        dtype: The integer type.
        quantizes: Whether it returns integers; otherwise it returns floats.
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


@dataclass(frozen=True)
class Dialect:
    """The names of one kind of Q/DQ pair.

    Attributes:
        domain: Domain of both operators.
        quantize: Operator type that returns integers.
        dequantize: Operator type that returns floats.
        is_native: Whether stock onnxruntime has kernels for them, so that no function is needed.
        has_position: Whether nodes also have ``bit_width`` and, for power-of-two scales, ``pos`` as strings, which the
            vendor's compilers read.
    """

    domain: str
    quantize: str
    dequantize: str
    is_native: bool = False
    has_position: bool = False

    @property
    def quantizer(self) -> tuple[str, str]:
        """Domain and type of the operator that returns integers."""
        return self.domain, self.quantize

    @property
    def dequantizer(self) -> tuple[str, str]:
        """Domain and type of the operator that returns floats."""
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
    """Return a function of a vendor's dialect that consists of one native operator.

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
