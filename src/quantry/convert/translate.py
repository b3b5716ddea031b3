"""Translate a quantized model from one dialect of Q/DQ pairs to another, or to standard operators.

Scales and zero points are first brought into one form, as constants:

::

    x -> QuantizeLinear (scale) -> DequantizeLinear (scale)      x -> QuantizeLinear (scale, 0) -> DequantizeLinear ...
    x -> FixNeuron <pos = "4", bit_width = "8">                  x -> FixNeuron (2**-4, 0) <...>

Then every pair is renamed in place and every FixNeuron becomes a pair. Scales, zero points and integers do not change,
so the outputs do not either. The functions of the old dialect are replaced by those of the new one::

    x -> com.vai.quantize.VAIQuantizeLinear -> VAIDequantizeLinear      becomes      x -> QuantizeLinear -> ...

``ort-cpu`` goes one step further: operators between pairs become onnxruntime's integer kernels wherever those give the
same bits, so that a model made for an NPU runs fast on a CPU and decides the same.
"""

import enum

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass

from quantry.emit import (
    CONTRIB,
    FIX_NEURON,
    MOVED_BY_RUNTIME,
    QUARK,
    REWRITE_SINCE_OPSET,
    STANDARD,
    VITIS,
    WIDE_TYPES_SINCE_OPSET,
    Dialect,
    FunctionCollector,
    position_attributes,
    thin_function,
    use_exact_integers,
)
from quantry.errors import ModelError
from quantry.graph.edit import FreshNames
from quantry.graph.qdq import is_dequantize, is_pair_node, is_quantize, tensor_of
from quantry.numerics.power_of_two import scale_at
from quantry.recipe import VitisDialect


class QdqDialect(enum.Enum):
    """A dialect of Q/DQ pairs, no vendor operators at all, or integer kernels; the value is the command line's name."""

    QDQ = "qdq"
    VAI = "vai"
    VITIS = "vitis"
    QUARK = "quark"
    CONTRIB = "contrib"
    STANDARD = "standard"
    ORT_CPU = "ort-cpu"

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of pairs; None for `STANDARD`, which inlines the functions of vendor operators."""
        if self is QdqDialect.STANDARD:
            return None
        if self in (QdqDialect.QDQ, QdqDialect.ORT_CPU):
            return STANDARD
        return CONTRIB if self is QdqDialect.CONTRIB else VITIS[VitisDialect(self.value)]


_INTEGERS = {4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16}


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, in place, so that types of scales and zero points are known."""
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _add_fix_neuron_parameters(model: ir.Model, node: ir.Node) -> None:
    """Add scale and zero point, in place, to a FixNeuron that has its position only in attributes."""
    if len(node.inputs) > 2 and node.inputs[1] is not None and node.inputs[2] is not None:
        return
    try:
        position = float(node.attributes.get_string("pos", ""))
        bits = int(node.attributes.get_string("bit_width", "8"))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"a FixNeuron must have a scale and a zero point, or its position, got {error}; node {node.name!r}"
        ) from error
    if bits not in _INTEGERS:
        raise ModelError(f"a FixNeuron must have 4, 8 or 16 bits, got {bits}; node {node.name!r}")
    stem = node.name or node.outputs[0].name or ""
    node.resize_inputs(3)
    scale = np.array(scale_at(position), np.float32)
    node.replace_input_with(1, _constant(model, scale, ir.DataType.FLOAT, f"{stem}_scale"))
    node.replace_input_with(2, _zero(model, (), _INTEGERS[bits], stem))


def _add_zero_points(model: ir.Model, pairs: list[ir.Node]) -> None:
    """Add zero points that are absent, in place: uint8 for a quantizer, else the type of the integers; all are 0."""
    for node in pairs:
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            continue
        scale, integers = node.inputs[1], node.inputs[0]
        if scale is None or scale.const_value is None:
            raise ModelError(f"a Q/DQ pair without zero point must have a constant scale; node {node.name!r}")
        written = None if integers is None else tensor_of(integers.producer())
        dtype = None if is_quantize(node) or integers is None else (written or integers).dtype
        node.resize_inputs(3)
        shape = tuple(scale.const_value.shape.numpy())
        node.replace_input_with(2, _zero(model, shape, dtype or ir.DataType.UINT8, node.name or ""))


def _zero(model: ir.Model, shape: tuple[int, ...], dtype: ir.DataType, stem: str) -> ir.Value:
    return _constant(model, np.zeros(shape, dtype.numpy()), dtype, f"{stem}_zero_point")


def _constant(model: ir.Model, values: np.ndarray, dtype: ir.DataType, stem: str) -> ir.Value:
    name = FreshNames(model).value(stem)
    tensor = ir.Tensor(values, dtype, name=name)
    shape = ir.Shape(values.shape)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


_VENDORS = {*(dialect.domain for dialect in VITIS.values() if not dialect.is_native), FIX_NEURON[0]}
_NATIVE_INTEGERS = {
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT16,
    ir.DataType.UINT16,
    ir.DataType.INT32,
}

_WITHOUT_PAIRS = {
    "DynamicQuantizeLinear": "computes its scale at run time",
    "MatMulNBits": "has no quantized activation",
}


def translate(model: ir.Model, target: QdqDialect) -> ir.Model:
    """Return the model in another dialect, with the same outputs.

    Args:
        model: A quantized model in any dialect; it is not changed. Vendor operators with known names need not have
            their functions, except for `QdqDialect.STANDARD`.
        target: The new dialect.

    Raises:
        ModelError: There is nothing to translate, or the dialect has no equivalent of an operator.
    """
    copy = model.clone()
    dialect = target.dialect
    if dialect is None:
        return _inlined(copy)
    lift_constants(copy)
    split_fix_neurons(copy)
    # First, so that an operator without equivalent is reported with what works instead.
    _check_vendor_nodes(copy, dialect)
    pairs = [node for node in _nodes(copy) if is_pair_node(node)]
    if not pairs and not any(node.domain in _VENDORS for node in _nodes(copy)):
        _check_run_time_nodes(copy)
        raise ModelError(
            f"a model to translate must have Q/DQ pairs or FixNeuron nodes, got none among {len(copy.graph)} nodes; "
            f"graph {copy.graph.name!r}"
        )
    if not dialect.is_native:
        _add_zero_points(copy, pairs)
    _rename(copy, pairs, dialect)
    if target is QdqDialect.ORT_CPU:
        _use_integers(copy)
    _drop_unused_domains(copy)
    return copy


def _use_integers(model: ir.Model) -> None:
    if not use_exact_integers(model):
        raise ModelError(
            "a model for integer kernels must have products for which they give the same bits: 8-bit tensors with "
            f"power-of-two scales, got none among {len(model.graph)} nodes; graph {model.graph.name!r}; models with "
            "other scales run on integer kernels as they are"
        )
    # onnxruntime would fuse what is left between pairs, with other roundings. It does not recognize a pair whose
    # second half is written out.
    for node in [node for node in _nodes(model) if is_dequantize(node)]:
        if _is_computed(node) and not node.outputs[0].is_graph_output():
            _write_out(model, node)


def _is_computed(node: ir.Node) -> bool:
    tensor = tensor_of(node)
    constant = all(value is None or value.const_value is not None for value in node.inputs[1:])
    return tensor is not None and constant and tensor.levels is None and tensor.step is not None


def _write_out(model: ir.Model, node: ir.Node) -> None:
    """Replace a DequantizeLinear with one scale by a Cast, a subtraction and a product, which are all exact."""
    tensor, output = tensor_of(node), node.outputs[0]
    assert tensor is not None
    stem = node.name or output.name or ""
    zero_point = _constant(model, np.array(tensor.offset, np.float32), ir.DataType.FLOAT, f"{stem}_float_zero_point")
    floats = ir.node("Cast", [tensor.integers], attributes={"to": ir.DataType.FLOAT}, name=f"{stem}_Cast")
    steps = ir.node("Sub", [floats.outputs[0], zero_point], name=f"{stem}_Sub")
    single = _constant(model, np.array(tensor.step, np.float32), ir.DataType.FLOAT, f"{stem}_float_scale")
    product = ir.node("Mul", [steps.outputs[0], single], name=f"{stem}_Mul")
    names = FreshNames(model)  # unnamed values would be numbered in each graph, bodies included, from zero
    for step in (floats, steps):
        step.outputs[0].name = names.value(f"{output.name}_{step.op_type}")
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, [floats, steps, product])
    ir.convenience.replace_nodes_and_values(graph, node, [node], [], [output], [product.outputs[0]])


def _rename(model: ir.Model, pairs: list[ir.Node], dialect: Dialect) -> None:
    opset = model.opset_imports[""]
    needing = [node for node in pairs if _needs_contrib(node, opset)]
    for node in pairs:
        _check_type(node, dialect, opset)
    body = CONTRIB if needing else STANDARD
    functions = FunctionCollector(model)
    for node in pairs:
        quantizes = is_quantize(node)
        pair_dialect = CONTRIB if dialect is STANDARD and node in needing else dialect
        node.domain, node.op_type = pair_dialect.quantizer if quantizes else pair_dialect.dequantizer
        node.overload = ""
        for name in ("bit_width", "pos"):
            node.attributes.pop(name, None)
        if pair_dialect.has_position:
            node.attributes.update(position_attributes(node))
        if pair_dialect.domain:
            model.opset_imports.setdefault(pair_dialect.domain, 1)
        if not pair_dialect.is_native:
            functions.use(node, thin_function(node.op_type, pair_dialect, body))
    called = {node.op_identifier() for node in _nodes(model)}
    for identifier in [key for key in model.functions if key[0] in _VENDORS and key not in called]:
        del model.functions[identifier]
    functions.finish()


def _check_type(node: ir.Node, dialect: Dialect, opset: int) -> None:
    dtype = _zero_point_type(node)
    wide = dtype == ir.DataType.INT32 and is_quantize(node)
    if dtype is not None and (wide or dtype not in _NATIVE_INTEGERS):
        raise ModelError(
            f"a Q/DQ pair of this dialect must have integers of 4 to 16 bits, got {dtype.name}; node {node.name!r}; "
            "translate to 'standard', which inlines the function of the operator"
        )
    if dialect is STANDARD and dtype in WIDE_TYPES_SINCE_OPSET and opset < WIDE_TYPES_SINCE_OPSET[dtype]:
        raise ModelError(
            f"QuantizeLinear supports {dtype.name} from opset {WIDE_TYPES_SINCE_OPSET[dtype]} on, got a model of opset "
            f"{opset}; node {node.name!r}; translate to 'contrib', which needs no later opset"
        )


def _needs_contrib(node: ir.Node, opset: int) -> bool:
    """Whether the native operator must be that of com.microsoft; see `quantry.emit` for the reasons."""
    dtype = _zero_point_type(node)
    if dtype is not None and opset < WIDE_TYPES_SINCE_OPSET.get(dtype, 0):
        return True
    if opset < REWRITE_SINCE_OPSET or dtype != ir.DataType.INT8:
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    if is_quantize(node):
        return any(_needs_contrib(reader, opset) for reader in readers if is_dequantize(reader))
    return any(reader.op_type in MOVED_BY_RUNTIME and not _is_closed(reader) for reader in readers)


def _is_closed(node: ir.Node) -> bool:
    uses = [use.node for output in node.outputs for use in output.uses()]
    return bool(uses) and all(map(is_quantize, uses))


def _zero_point_type(node: ir.Node) -> ir.DataType | None:
    tensor = tensor_of(node)
    return None if tensor is None or tensor.zero_point is None else tensor.zero_point.dtype


def split_fix_neurons(model: ir.Model) -> None:
    """Replace every FixNeuron by a standard pair, in place.

    Args:
        model: The model; its Constant nodes are initializers.

    Raises:
        ModelError: A FixNeuron has neither scale and zero point nor a position.
    """
    for node in [node for node in _nodes(model) if (node.domain, node.op_type) == FIX_NEURON]:
        output, graph = node.outputs[0], node.graph
        assert graph is not None
        _add_fix_neuron_parameters(model, node)
        scale, zero_point = node.inputs[1], node.inputs[2]
        if zero_point is None or zero_point.dtype is None:
            raise ModelError(f"a FixNeuron must have a typed zero point, got none; node {node.name!r}")
        stem = (node.name or output.name or "").removesuffix("_FixNeuron")
        quantize = ir.node("QuantizeLinear", [node.inputs[0], scale, zero_point], name=f"{stem}_QuantizeLinear")
        quantize.outputs[0].name = f"{stem}_QuantizeLinear_Output"
        quantize.outputs[0].type = ir.TensorType(zero_point.dtype)
        quantize.outputs[0].shape = output.shape
        restore = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero_point], name=f"{stem}_DequantizeLinear")
        graph.insert_before(node, [quantize, restore])
        ir.convenience.replace_nodes_and_values(graph, node, [node], [], [output], [restore.outputs[0]])


def _nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the main graph and of all bodies."""
    return list(ir.traversal.RecursiveGraphIterator(model.graph))


def _check_vendor_nodes(model: ir.Model, dialect: Dialect) -> None:
    for node in _nodes(model):
        is_defined = dialect is QUARK and node.op_identifier() in model.functions
        if node.domain in _VENDORS and not is_pair_node(node) and not is_defined:
            raise ModelError(
                f"a vendor operator must have an equivalent in the dialect {dialect.quantize!r} of "
                f"{dialect.domain or 'ai.onnx'}, got {node.domain}.{node.op_type}; node {node.name!r}; translate to "
                "'standard', which inlines the function of the operator"
            )


def _check_run_time_nodes(model: ir.Model) -> None:
    for node in _nodes(model):
        if node.op_type in _WITHOUT_PAIRS:
            raise ModelError(
                f"a model to translate must have Q/DQ pairs or FixNeuron nodes, got {node.op_type}, which "
                f"{_WITHOUT_PAIRS[node.op_type]}; node {node.name!r}; quantize the float model with a preset that "
                "calibrates, such as S8S8_AAWS or XINT8"
            )


def _inlined(model: ir.Model) -> ir.Model:
    for node in _nodes(model):
        if node.domain in _VENDORS and node.op_identifier() not in model.functions:
            raise ModelError(
                f"a vendor operator must have its function to be inlined, got {node.domain}.{node.op_type} "
                f"without one; node {node.name!r}; translate to a dialect of Q/DQ pairs first"
            )
    InlinePass(lambda function: function.domain in _VENDORS)(model)
    _drop_unused_domains(model)
    return model


def _drop_unused_domains(model: ir.Model) -> None:
    used = {node.domain for node in _nodes(model)}
    for function in model.functions.values():
        used |= {function.domain, *(node.domain for node in function)}
    for domain in [domain for domain in model.opset_imports if domain and domain not in used]:
        del model.opset_imports[domain]
