"""Tools of ``quark.onnx.tools`` that change the types of a quantized model, or remove some of its Q/DQ pairs."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.convert import Target, translate
from quantry.convert.translate import lift_constants
from quantry.emit.graph_editor import WIDE_TYPES_SINCE_OPSET
from quantry.errors import ModelError, RecipeError
from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, bypass, constant_of
from quantry.graph.passes.convert_opset import convert_opset
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.weights import new_initializer
from quantry.numerics.rounding import round_and_clip

_QUANTIZERS = re.compile(r"^(|VAI|Vitis|Extended)QuantizeLinear$")
_RESTORERS = re.compile(r"^(|VAI|Vitis|Extended)D(e|E)[qQ]uantizeLinear$")
_LARGEST_BFLOAT16 = 3.3895313892515355e38
_INT16_BIASES_SINCE_OPSET = 21


Change = Callable[[float, int], tuple[float, NDArray[Any]]]
"""Returns new scale and zero point for old ones."""


@dataclass(frozen=True)
class Pair:
    """The Q/DQ nodes that share one scale and zero point.

    Attributes:
        nodes: All of them.
        scale: The scale.
        zero_point: The zero point.
    """

    nodes: tuple[ir.Node, ...]
    scale: NDArray[np.float32]
    zero_point: NDArray[Any]


def _is_pair_node(node: ir.Node) -> bool:
    return bool(_QUANTIZERS.match(node.op_type) or _RESTORERS.match(node.op_type))


def _is_constant_restorer(node: ir.Node) -> bool:
    return bool(_RESTORERS.match(node.op_type)) and constant_of(node.inputs[0]) is not None


def _activation_pairs(model: ir.Model) -> Iterator[Pair]:
    """Yield the pairs of activations, one for each scale that they share."""
    lift_constants(model)
    groups: dict[tuple[str, str], list[ir.Node]] = {}
    for node in model.graph:
        if _is_pair_node(node) and not _is_constant_restorer(node) and len(node.inputs) > 2:
            groups.setdefault((str(node.inputs[1].name), str(node.inputs[2].name)), []).append(node)  # type: ignore[union-attr]
    for nodes in groups.values():
        scale, zero_point = constant_of(nodes[0].inputs[1]), constant_of(nodes[0].inputs[2])
        if scale is not None and zero_point is not None and scale.size == 1 and zero_point.dtype.kind in "iu":
            yield Pair(tuple(nodes), scale, zero_point)


def _rewrite(model: ir.Model, pair: Pair, scale: float, zero_point: NDArray[Any]) -> None:
    names, stem = FreshNames(model), str(pair.nodes[0].inputs[1].name)  # type: ignore[union-attr]
    scales = new_initializer(names.value(f"{stem}_converted"), np.array(scale, np.float32).reshape(pair.scale.shape))
    zeros = new_initializer(names.value(f"{stem}_converted_zero_point"), zero_point.reshape(pair.zero_point.shape))
    for value in (scales, zeros):
        model.graph.register_initializer(value)
    for node in pair.nodes:
        node.replace_input_with(1, scales)
        node.replace_input_with(2, zeros)
        if _QUANTIZERS.match(node.op_type) and zeros.dtype is not None:
            node.outputs[0].type = ir.TensorType(zeros.dtype)


def _retyped(model: ir.Model, source: type, change: Callable[[float, int], tuple[float, NDArray[Any]]]) -> ir.Model:
    found = [pair for pair in _activation_pairs(model) if pair.zero_point.dtype == source]
    if not found:
        raise ModelError(f"the model must have activations of {np.dtype(source).name}, got none")
    for pair in found:
        _rewrite(model, pair, *change(float(pair.scale), int(pair.zero_point)))
    _derive_biases(model)
    remove_unused(model)
    return model


def unsigned_activations(model: ir.Model) -> ir.Model:
    """Return an int8 model with uint8 activations that stand for the same numbers."""
    return _retyped(model, np.int8, lambda scale, zero: (scale, np.array(zero + 128, np.uint8)))


def signed_wide_activations(model: ir.Model) -> ir.Model:
    """Return a model with int16 instead of uint16 activations that stand for the same numbers."""
    return _retyped(model, np.uint16, lambda scale, zero: (scale, np.array(zero - 32768, np.int16)))


def narrow_activations(model: ir.Model) -> ir.Model:
    """Return a model with uint8 instead of uint16 activations of the same ranges; biases follow the new scales."""
    return _retyped(model, np.uint16, lambda scale, zero: (scale * 257, np.array(round(zero / 257), np.uint8)))


def power_of_two_resizes(model: ir.Model) -> ir.Model:
    """Return the model with power-of-two scales around Resize, the smallest that cover the same ranges."""
    touched = {
        str(value.name)
        for node in model.graph
        if node.op_type in ("Resize", "Upsample")
        for value in (node.inputs[0], node.outputs[0])
        if value is not None
    }
    for pair in list(_activation_pairs(model)):
        values = [value for node in pair.nodes for value in (node.inputs[0], node.outputs[0]) if value is not None]
        if not touched & {str(value.name) for value in values}:
            continue
        scale, ends = float(pair.scale), np.iinfo(pair.zero_point.dtype)
        new = float(2.0 ** np.ceil(np.log2(scale)))
        middle = (ends.min + ends.max + 1) // 2
        # Distances from the middle of the type shrink with the scale, so no value leaves the range.
        zero = round(middle + (int(pair.zero_point) - middle) * scale / new)
        _rewrite(model, pair, new, np.array(zero, pair.zero_point.dtype))
    _derive_biases(model)
    remove_unused(model)
    return model


def _stored_biases(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Node, NDArray[np.float64]]]:
    """Yield a linear layer, the node that restores its bias, and the bias as floats."""
    for node in model.graph:
        bias = node.inputs[2] if node.op_type in LINEAR and len(node.inputs) > 2 else None
        restorer = None if bias is None else bias.producer()
        if restorer is None or not _is_constant_restorer(restorer):
            continue
        integers, scale, zero = (constant_of(value) for value in (*restorer.inputs, None)[:3])
        if integers is None or scale is None or integers.dtype.kind != "i":
            continue
        offset = 0.0 if zero is None else zero.astype(np.float64)
        yield node, restorer, (integers.astype(np.float64) - offset) * scale.astype(np.float64)


def _derive_biases(model: ir.Model) -> None:
    """Write 32-bit biases again, with the product of the scales of data and weight, which may have changed."""
    for node, restorer, floats in list(_stored_biases(model)):
        integers = constant_of(restorer.inputs[0])
        if integers is not None and integers.dtype == np.int32:
            _write_bias(model, node, restorer, floats)


def _write_bias(model: ir.Model, node: ir.Node, restorer: ir.Node, floats: NDArray[np.float64]) -> bool:
    scales = []
    for value in node.inputs[:2]:
        source = None if value is None else value.producer()
        scale = None if source is None or not _RESTORERS.match(source.op_type) else constant_of(source.inputs[1])
        if scale is None:
            return False
        scales.append(scale.astype(np.float64))
    product = np.asarray(scales[0] * scales[1])
    limits = np.iinfo(np.int32)
    integers = round_and_clip(floats / product, limits.min, limits.max).astype(np.int32)
    zeros = np.zeros(product.shape, np.int32)
    _replace_constants(model, restorer, (integers, product.astype(np.float32), zeros))
    return True


def _replace_constants(model: ir.Model, restorer: ir.Node, arrays: tuple[NDArray[Any], ...]) -> None:
    names = FreshNames(model)
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
    for _, restorer, floats in list(_stored_biases(model)):
        scale = np.array(max(float(np.abs(floats).max(initial=0.0)), 1e-30) / 32767, np.float32)
        integers = round_and_clip(floats / float(scale), -32768, 32767).astype(np.int16)
        _replace_constants(model, restorer, (integers, scale, np.zeros((), np.int16)))
        restorer.attributes.pop("axis", None)
    remove_unused(model)
    return model


def for_cpus(model: ir.Model) -> ir.Model:
    """Return an int8 model for NPUs in the form of CPU models: standard pairs, int32 biases with derived scales."""
    model = translate(model, Target.QDQ)
    lift_constants(model)
    for node, restorer, floats in list(_stored_biases(model)):
        _write_bias(model, node, restorer, floats)
    remove_unused(model)
    return model


def standard_pairs(model: ir.Model) -> ir.Model:
    """Return the model with standard instead of vendor Q/DQ pairs, at a later opset if their types need it."""
    lift_constants(model)
    zeros = [node.inputs[2] for node in model.graph if _is_pair_node(node) and len(node.inputs) > 2]
    needed = max(
        (WIDE_TYPES_SINCE_OPSET.get(zero.dtype, 0) for zero in zeros if zero is not None and zero.dtype), default=0
    )
    if model.opset_imports[""] < needed:
        model = convert_opset(model, needed)
    return translate(model, Target.QDQ)


def without_pairs_between(model: ir.Model, between_ops: str | Iterable[tuple[str, str]] = "") -> ir.Model:
    """Return the model without the Q/DQ pairs between some operators.

    Args:
        model: The model.
        between_ops: Pairs of operator types, or text such as ``Conv,Relu;Mul,Add``.
    """
    listed = (
        [tuple(part.split(",")) for part in between_ops.split(";")] if isinstance(between_ops, str) else between_ops
    )
    wanted = {tuple(name.strip() for name in names) for names in listed if any(names)}
    if not wanted or any(len(names) != 2 for names in wanted):
        raise RecipeError(f"between_ops must be pairs such as 'Conv,Relu;Mul,Add', got {between_ops!r}")
    for node in list(model.graph):
        source = _source_of_pair(node)
        producer = None if source is None else source.producer()
        readers = {use.node.op_type for use in node.outputs[0].uses()}
        if source is None or producer is None or not readers or node.outputs[0].is_graph_output():
            continue
        if all((producer.op_type, reader) in wanted for reader in readers):
            bypass(node, source)
    remove_unused(model)
    return model


def without_pairs_between_mul_and_add(model: ir.Model) -> ir.Model:
    """Return the model without the Q/DQ pairs between Mul and Add."""
    return without_pairs_between(model, [("Mul", "Add")])


def _source_of_pair(node: ir.Node) -> ir.Value | None:
    """Return what is quantized and restored by a DequantizeLinear and the node before it."""
    before = node.inputs[0].producer() if _RESTORERS.match(node.op_type) and node.inputs[0] is not None else None
    return before.inputs[0] if before is not None and _QUANTIZERS.match(before.op_type) else None


def _is_cast(node: ir.Node, target: ir.DataType) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == int(target)


def without_bfloat16_casts(model: ir.Model) -> ir.Model:
    """Return the model without Casts to bfloat16 and back; weights that are stored as bfloat16 become float32."""
    lift_constants(model)
    for node in list(model.graph):
        source = node.inputs[0] if _is_cast(node, ir.DataType.FLOAT) else None
        before = None if source is None else source.producer()
        if before is not None and _is_cast(before, ir.DataType.BFLOAT16) and before.inputs[0] is not None:
            bypass(node, before.inputs[0])
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
        to = ir.DataType.BFLOAT16 if _QUANTIZERS.match(node.op_type) else ir.DataType.FLOAT
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
        if not _QUANTIZERS.match(node.op_type) or source is None:
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
    return [
        node
        for node in model.graph
        if _is_pair_node(node)
        and len(node.inputs) > 2
        and node.inputs[2] is not None
        and node.inputs[2].dtype == ir.DataType.BFLOAT16
    ]


def nodes_by_bits(model: ir.Model) -> dict[str, list[str]]:
    """Print and return the linear layers with 16-bit and with 8-bit activations."""
    lift_constants(model)
    found: dict[str, list[str]] = {"A16W8": [], "A8W8": []}
    for node in model.graph:
        restorer = node.inputs[0].producer() if node.op_type in LINEAR and node.inputs[0] is not None else None
        zero = None if restorer is None or len(restorer.inputs) < 3 else constant_of(restorer.inputs[2])
        if zero is not None and zero.dtype.itemsize in (1, 2):
            found["A16W8" if zero.dtype.itemsize == 2 else "A8W8"].append(node.name or "")
    for kind, nodes in found.items():
        sys.stdout.write(f"{kind}: {len(nodes)} nodes{': ' if nodes else ''}{', '.join(nodes)}\n")
    return found
