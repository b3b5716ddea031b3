"""Tools of ``quark.onnx.tools`` that change the types of a quantized model, or remove some of its Q/DQ pairs."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.convert import QdqDialect, translate
from quantry.convert.translate import lift_constants
from quantry.emit.graph_editor import WIDE_TYPES_SINCE_OPSET
from quantry.errors import ModelError, RecipeError
from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, bypass, constant_of
from quantry.graph.passes.convert_opset import convert_opset
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.qdq import QuantizedTensor, before_pair, is_dequantize, is_quantize, read_through, tensor_of
from quantry.graph.weights import new_initializer
from quantry.numerics.rounding import round_and_clip

_LARGEST_BFLOAT16 = 3.3895313892515355e38
_INT16_BIASES_SINCE_OPSET = 21


def _activations(model: ir.Model) -> Iterator[list[QuantizedTensor]]:
    """Yield what the nodes of pairs of activations say, in groups that share one scale and zero point."""
    lift_constants(model)
    groups: dict[tuple[ir.Value, ir.Value], list[QuantizedTensor]] = {}
    for tensor in map(tensor_of, model.graph):
        if tensor is not None and tensor.is_fixed and tensor.levels is None:
            groups.setdefault(tensor.parameters, []).append(tensor)
    for tensors in groups.values():
        if tensors[0].step is not None and tensors[0].limits is not None:
            yield tensors


def _rewrite(model: ir.Model, tensors: list[QuantizedTensor], scale: float, zero_point: NDArray[Any]) -> None:
    names, stem = FreshNames(model), tensors[0].parameters[0].name
    scales = new_initializer(names.value(f"{stem}_converted"), np.full_like(tensors[0].scales, scale))
    zeros = new_initializer(
        names.value(f"{stem}_converted_zero_point"), zero_point.reshape(tensors[0].zero_points.shape)
    )
    for value in (scales, zeros):
        model.graph.register_initializer(value)
    for tensor in tensors:
        assert tensor.node is not None
        tensor.node.replace_input_with(1, scales)
        tensor.node.replace_input_with(2, zeros)
        if is_quantize(tensor.node) and zeros.dtype is not None:
            tensor.integers.type = ir.TensorType(zeros.dtype)


def _retyped(
    model: ir.Model, source: ir.DataType, change: Callable[[float, int], tuple[float, NDArray[Any]]]
) -> ir.Model:
    """Return the model with new scales and zero points, which a function computes, for activations of one type."""
    activations = [tensors for tensors in _activations(model) if tensors[0].dtype == source]
    if not activations:
        raise ModelError(f"the model must have activations of {source.name.lower()}, got none")
    for tensors in activations:
        step = tensors[0].step
        assert step is not None
        _rewrite(model, tensors, *change(step, tensors[0].offset))
    _derive_biases(model)
    remove_unused(model)
    return model


def unsigned_activations(model: ir.Model) -> ir.Model:
    """Return an int8 model with uint8 activations that stand for the same numbers."""
    return _retyped(model, ir.DataType.INT8, lambda scale, zero: (scale, np.array(zero + 128, np.uint8)))


def signed_wide_activations(model: ir.Model) -> ir.Model:
    """Return a model with int16 instead of uint16 activations that stand for the same numbers."""
    return _retyped(model, ir.DataType.UINT16, lambda scale, zero: (scale, np.array(zero - 32768, np.int16)))


def narrow_activations(model: ir.Model) -> ir.Model:
    """Return a model with uint8 instead of uint16 activations of the same ranges; biases follow the new scales."""
    return _retyped(model, ir.DataType.UINT16, lambda scale, zero: (scale * 257, np.array(round(zero / 257), np.uint8)))


def power_of_two_resizes(model: ir.Model) -> ir.Model:
    """Return the model with power-of-two scales around Resize, the smallest that cover the same ranges."""
    touched = {
        str(value.name)
        for node in model.graph
        if node.op_type in ("Resize", "Upsample")
        for value in (node.inputs[0], node.outputs[0])
        if value is not None
    }
    for tensors in list(_activations(model)):
        first, nodes = tensors[0], [tensor.node for tensor in tensors if tensor.node is not None]
        values = [value for node in nodes for value in (node.inputs[0], node.outputs[0]) if value is not None]
        if not touched & {str(value.name) for value in values} or first.step is None or first.limits is None:
            continue
        assert first.dtype is not None
        new = float(2.0 ** np.ceil(np.log2(first.step)))
        middle = (sum(first.limits) + 1) // 2
        # Distances from the middle of the type shrink with the scale, so no value leaves the range.
        zero = round(middle + (first.offset - middle) * first.step / new)
        _rewrite(model, tensors, new, np.array(zero, first.dtype.numpy()))
    _derive_biases(model)
    remove_unused(model)
    return model


def _stored_biases(model: ir.Model) -> Iterator[tuple[ir.Node, QuantizedTensor, NDArray[np.float64]]]:
    """Yield a linear layer, its stored bias, and the bias as floats."""
    for node in model.graph:
        bias = read_through(node.inputs[2]) if node.op_type in LINEAR and len(node.inputs) > 2 else None
        floats = None if bias is None else bias.numbers
        if bias is not None and floats is not None and bias.dtype is not None and bias.dtype.is_signed():
            yield node, bias, floats


def _derive_biases(model: ir.Model) -> None:
    """Write 32-bit biases again, with the product of the scales of data and weight, which may have changed."""
    for node, bias, floats in list(_stored_biases(model)):
        if bias.dtype == ir.DataType.INT32:
            _write_bias(model, node, bias, floats)


def _write_bias(model: ir.Model, node: ir.Node, bias: QuantizedTensor, floats: NDArray[np.float64]) -> None:
    """Write a bias with the product of the scales of data and weight, if both are constant."""
    data, weight = map(read_through, node.inputs[:2])
    if data is None or weight is None or data.scales is None or weight.scales is None:
        return
    product = np.asarray(data.scales.astype(np.float64) * weight.scales.astype(np.float64))
    limits = np.iinfo(np.int32)
    integers = round_and_clip(floats / product, limits.min, limits.max).astype(np.int32)
    _replace_constants(model, bias, (integers, product.astype(np.float32), np.zeros(product.shape, np.int32)))


def _replace_constants(model: ir.Model, tensor: QuantizedTensor, arrays: tuple[NDArray[Any], ...]) -> None:
    restorer, names = tensor.node, FreshNames(model)
    assert restorer is not None
    for index, array in enumerate(arrays):
        old = restorer.inputs[index]
        value = new_initializer(names.value(f"{old.name if old is not None else restorer.name}_converted"), array)
        model.graph.register_initializer(value)
        restorer.replace_input_with(index, value)
    if arrays[1].ndim == 1:
        restorer.attributes.add(ir.AttrInt64("axis", 0))


def int16_biases(model: ir.Model) -> ir.Model:
    """Return the model with int16 biases with scales of their own instead of int32 biases."""
    lift_constants(model)
    if model.opset_imports[""] < _INT16_BIASES_SINCE_OPSET:
        model = convert_opset(model, _INT16_BIASES_SINCE_OPSET)
    for _, bias, floats in list(_stored_biases(model)):
        scale = np.array(max(float(np.abs(floats).max(initial=0.0)), 1e-30) / 32767, np.float32)
        integers = round_and_clip(floats / float(scale), -32768, 32767).astype(np.int16)
        _replace_constants(model, bias, (integers, scale, np.zeros((), np.int16)))
        assert bias.node is not None
        bias.node.attributes.pop("axis", None)
    remove_unused(model)
    return model


def for_cpus(model: ir.Model) -> ir.Model:
    """Return an int8 model for NPUs in the form of CPU models: standard pairs, int32 biases with derived scales."""
    model = translate(model, QdqDialect.QDQ)
    lift_constants(model)
    for node, bias, floats in list(_stored_biases(model)):
        _write_bias(model, node, bias, floats)
    remove_unused(model)
    return model


def standard_pairs(model: ir.Model) -> ir.Model:
    """Return the model with standard instead of vendor Q/DQ pairs, at a later opset if their types need it."""
    lift_constants(model)
    types = {tensor.dtype for tensor in map(tensor_of, model.graph) if tensor is not None}
    needed = max((WIDE_TYPES_SINCE_OPSET.get(dtype, 0) for dtype in types if dtype is not None), default=0)
    if model.opset_imports[""] < needed:
        model = convert_opset(model, needed)
    return translate(model, QdqDialect.QDQ)


def without_pairs_between(model: ir.Model, between_ops: str | Iterable[tuple[str, str]] = "") -> ir.Model:
    """Return the model without the Q/DQ pairs between some operators.

    Args:
        model: The model.
        between_ops: Pairs of operator types, or text such as ``Conv,Relu;Mul,Add``.
    """
    listed = (
        [tuple(pair.split(",")) for pair in between_ops.split(";")] if isinstance(between_ops, str) else between_ops
    )
    operator_pairs = {tuple(name.strip() for name in names) for names in listed if any(names)}
    if not operator_pairs or any(len(names) != 2 for names in operator_pairs):
        raise RecipeError(f"between_ops must be pairs such as 'Conv,Relu;Mul,Add', got {between_ops!r}")
    for node in list(model.graph):
        source = before_pair(node.outputs[0])
        producer = source.producer() if is_dequantize(node) else None
        readers = {use.node.op_type for use in node.outputs[0].uses()}
        if producer is None or not readers or node.outputs[0].is_graph_output():
            continue
        if all((producer.op_type, reader) in operator_pairs for reader in readers):
            bypass(node, source)
    remove_unused(model)
    return model


def without_pairs_between_mul_and_add(model: ir.Model) -> ir.Model:
    """Return the model without the Q/DQ pairs between Mul and Add."""
    return without_pairs_between(model, [("Mul", "Add")])


def _is_cast(node: ir.Node, target: ir.DataType) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == int(target)


def without_bfloat16_casts(model: ir.Model) -> ir.Model:
    """Return the model without Casts to bfloat16 and back; weights that are stored as bfloat16 become float32."""
    lift_constants(model)
    for node in list(model.graph):
        source = node.inputs[0] if _is_cast(node, ir.DataType.FLOAT) else None
        producer = None if source is None else source.producer()
        if producer is not None and _is_cast(producer, ir.DataType.BFLOAT16) and producer.inputs[0] is not None:
            bypass(node, producer.inputs[0])
        elif source is not None and source.dtype == ir.DataType.BFLOAT16 and constant_of(source) is not None:
            array = constant_of(source)
            assert array is not None
            value = new_initializer(FreshNames(model).value(f"{source.name}_float"), array.astype(np.float32))
            model.graph.register_initializer(value)
            bypass(node, value)
    remove_unused(model)
    return model


def casts_for_bfloat16_pairs(model: ir.Model) -> ir.Model:
    """Return the model with Casts to bfloat16 and back instead of vendor pairs of bfloat16."""
    for node in _bfloat16_pair_nodes(model):
        to = ir.DataType.BFLOAT16 if is_quantize(node) else ir.DataType.FLOAT
        cast = ir.node("Cast", [node.inputs[0]], attributes={"to": int(to)}, name=f"{node.name}_Cast")
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(to), node.outputs[0].shape
        graph = node.graph
        assert graph is not None
        name = node.outputs[0].name
        graph.insert_before(node, cast)
        if bypass(node, cast.outputs[0]) and cast.outputs[0].name is None:
            cast.outputs[0].name = name
    remove_unused(model)
    return model


def clips_before_bfloat16_pairs(model: ir.Model) -> ir.Model:
    """Return the model with a Clip to the finite numbers of bfloat16 before each vendor pair of bfloat16."""
    names = FreshNames(model)
    ends = [
        new_initializer(names.value(f"bfloat16_{name}"), np.array(end, np.float32))
        for name, end in (("lowest", -_LARGEST_BFLOAT16), ("highest", _LARGEST_BFLOAT16))
    ]
    for end in ends:
        model.graph.register_initializer(end)
    for node in _bfloat16_pair_nodes(model):
        source = node.inputs[0]
        if not is_quantize(node) or source is None:
            continue
        clip = ir.node("Clip", [source, *ends], name=names.node(f"{node.name}_Clip"))
        clip.outputs[0].name = names.value(f"{source.name}_clipped")
        clip.outputs[0].type, clip.outputs[0].shape = source.type, source.shape
        model.graph.insert_before(node, clip)
        node.replace_input_with(0, clip.outputs[0])
    remove_unused(model)
    return model


def _bfloat16_pair_nodes(model: ir.Model) -> list[ir.Node]:
    lift_constants(model)
    pairs = ((node, tensor_of(node)) for node in model.graph)
    return [node for node, tensor in pairs if tensor is not None and tensor.dtype == ir.DataType.BFLOAT16]


def nodes_by_bits(model: ir.Model) -> dict[str, list[str]]:
    """Print and return the linear layers with 16-bit and with 8-bit activations."""
    lift_constants(model)
    layers: dict[int, list[str]] = {16: [], 8: []}
    for node in model.graph:
        restore = node.inputs[0].producer() if node.op_type in LINEAR and node.inputs[0] is not None else None
        # FixNeuron has its zero point where DequantizeLinear has it.
        zero_point = restore.inputs[2] if restore is not None and len(restore.inputs) > 2 else None
        bits = 0 if zero_point is None or zero_point.dtype is None else zero_point.dtype.bitwidth
        if bits in layers:
            layers[bits].append(node.name or "")
    names = {f"A{bits}W8": nodes for bits, nodes in layers.items()}
    for kind, nodes in names.items():
        sys.stdout.write(f"{kind}: {len(nodes)} nodes{': ' if nodes else ''}{', '.join(nodes)}\n")
    return names
