"""Model-local functions, written as ONNX text.

The model-local functions of one model while it is written.

Functions for the 32-bit integers that QuantizeLinear does not have.

Computed in float64, where 32-bit integers are exact: ``q = saturate(round_half_even(x / scale) + zero_point)``.

The names under which Q/DQ pairs exist, and the model-local functions that give the vendors' ones their meaning.

A node of a vendor's domain is written together with a function of the same name whose body is standard ONNX::

    com.vai.quantize.VAIQuantizeLinear (x, scale, zero_point) => y {
        y = QuantizeLinear <axis = @axis> (x, scale, zero_point)
    }

so that any onnxruntime runs it, and inlines it before it optimises. Where the vendor's own library is registered, its
kernel of that name is taken instead of the function.
"""

from dataclasses import dataclass

import onnx
import onnx.parser
import onnx_ir as ir

from quantry.emit.graph_editor import ONNX_TYPE
from quantry.recipe import DataType, VitisDialect

_CONTRIB_DOMAIN = "com.microsoft"


def add_function(model: ir.Model, domain: str, text: str, overload: str = "") -> None:
    """Parse a function, add it to the model and import the domains it needs.

    A body must import the operator set of its model, because onnxruntime resolves it there.

    Args:
        model: The model.
        domain: Domain of the function.
        text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
        overload: Tells functions of one name apart where a model needs several.
    """
    imports = {"": model.opset_imports[""]}
    if f"{_CONTRIB_DOMAIN}." in text:
        imports[_CONTRIB_DOMAIN] = 1
        model.opset_imports.setdefault(_CONTRIB_DOMAIN, 1)
    model.opset_imports.setdefault(domain, 1)
    described = ", ".join(f'"{name}" : {version}' for name, version in imports.items())
    marked = f', overload: "{overload}"' if overload else ""
    proto = onnx.parser.parse_function(f'<domain: "{domain}", opset_import: [{described}]{marked}> {text}')
    # The parser names no nodes; onnx-ir would, by a counter that outlives the model.
    for index, node in enumerate(proto.node):
        node.name = f"{proto.name}_{node.op_type}_{index}"
    function = ir.serde.deserialize_function(proto)
    model.functions[function.identifier()] = function


_FIRST_IR_WITH_OVERLOADS = 10


class FunctionBook:
    """Collects which vendor operator needs which body, and adds the functions at the end.

    Number formats share operator names: ExtendedQuantizeLinear makes int8, int32 or bfloat16, as its zero point says,
    but the body of a function has fixed types. A model that needs several bodies of one name gets one overload for
    each; the body with the empty kind never has one, and neither has the only body of its name.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._bodies: dict[tuple[str, str], dict[str, str]] = {}
        self._readers: list[tuple[ir.Node, str]] = []

    def use(self, node: ir.Node, text: str, kind: str = "") -> None:
        """Note that a node is defined by a function.

        Args:
            node: The node, in the vendor's domain.
            text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
            kind: Names the body among those of the same operator.
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
