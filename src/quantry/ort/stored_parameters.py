"""Partly quantized models: weights that are integers already and ranges of Q/DQ pairs are kept.

The pairs themselves are removed, so that all tensors of a model go one way. A pair also limits its tensor, and tools
remove the Relu before it for that reason, so a Clip with the same ends takes its place::

    Conv -> QuantizeLinear -> DequantizeLinear -> Gemm      becomes      Conv -> Clip -> Gemm
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, bypass, constant_of
from quantry.graph.load import model_source
from quantry.graph.weights import new_initializer
from quantry.onnx.model_tools import TOOLS
from quantry.onnx.translate import Job
from quantry.recipe import DataType, GivenRange, PerChannel, PerTensor, TensorSpec, TensorTypes

_TYPES = {
    onnx.TensorProto.INT8: DataType.INT8,
    onnx.TensorProto.UINT8: DataType.UINT8,
    onnx.TensorProto.INT16: DataType.INT16,
    onnx.TensorProto.UINT16: DataType.UINT16,
    onnx.TensorProto.INT4: DataType.INT4,
    onnx.TensorProto.UINT4: DataType.UINT4,
}


@dataclass(frozen=True)
class StoredWeight:
    """One weight that is stored as integers.

    Attributes:
        tensor: Name of the float weight after Q/DQ nodes were removed.
        spec: Its type.
        scale: Its scales.
        zero_point: Its zero points.
        names: Names of scale and zero point in the user's model.
    """

    tensor: str
    spec: TensorSpec
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    names: tuple[str, str]


@dataclass(frozen=True)
class StoredRange:
    """The range of a removed Q/DQ pair.

    Attributes:
        tensor: Name of the tensor in the model without pairs.
        low: What the smallest integer stands for.
        high: What the largest integer stands for.
        symmetric_low: The negative of ``high`` if the zero point is 0 and the type is signed, else ``low``.
    """

    tensor: str
    low: float
    high: float
    symmetric_low: float


@dataclass(frozen=True)
class Unquantized:
    """A partly quantized model without its Q/DQ nodes, and what these stored.

    Attributes:
        model: The float model.
        weights: Weights that were integers.
        ranges: Ranges of activations.
    """

    model: onnx.ModelProto
    weights: tuple[StoredWeight, ...]
    ranges: tuple[StoredRange, ...]


def unquantized(model: Any) -> Unquantized:
    """Return a model, given as a path or a proto, without its Q/DQ nodes."""
    loaded = model_source(model).load()
    weights = stored_weights(ir.serde.serialize_model(loaded))
    ranges = tuple(_with_clips(loaded))
    return Unquantized(TOOLS["remove_qdq"].run(ir.serde.serialize_model(loaded)), weights, ranges)


def _with_clips(model: ir.Model) -> Iterator[StoredRange]:
    """Replace each Q/DQ pair with one scale by a Clip, in place, and yield its range."""
    names = FreshNames(model)
    for node in list(model.graph):
        source = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        scale, zero = (constant_of(value) for value in (*node.inputs[1:3], None, None)[:2])
        readers = [use.node for use in node.outputs[0].uses()]
        if source is None or scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
            continue
        if not readers or any(reader.op_type != "DequantizeLinear" for reader in readers):
            continue
        ends, offset = np.iinfo(zero.dtype), int(zero)
        low, high = (float((end - offset) * float(scale)) for end in (ends.min, ends.max))
        # No Relu can have stood before a pair of the model's input.
        limited = source if source.producer() is None else _clipped(node, source, (low, high), names)
        for reader in readers:
            bypass(reader, limited)
        yield StoredRange(str(limited.name), low, high, -high if offset == 0 and ends.min else low)


def _clipped(node: ir.Node, source: ir.Value, ends: tuple[float, float], names: FreshNames) -> ir.Value:
    graph = node.graph
    assert graph is not None
    dtype = np.float16 if source.dtype == ir.DataType.FLOAT16 else np.float32
    bounds = [new_initializer(names.value(f"{source.name}_limit"), np.array(end, dtype)) for end in ends]
    for bound in bounds:
        graph.register_initializer(bound)
    clip = ir.node("Clip", [source, *bounds], name=names.node(f"{source.name}_Clip"))
    clip.outputs[0].name = names.value(f"{source.name}_clipped")
    clip.outputs[0].type, clip.outputs[0].shape = source.type, source.shape
    graph.insert_before(node, clip)
    return clip.outputs[0]


def stored_weights(model: onnx.ModelProto) -> tuple[StoredWeight, ...]:
    """Return the weights of linear layers that a model stores as integers with constant scales and zero points."""
    return tuple(_found(model))


def _found(model: onnx.ModelProto) -> Iterator[StoredWeight]:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = {node.input[1] for node in model.graph.node if node.op_type in LINEAR and len(node.input) > 1}
    for node in model.graph.node:
        names = list(node.input)
        if node.op_type != "DequantizeLinear" or len(names) < 3 or node.output[0] not in weights:
            continue
        if any(name not in constants for name in names) or constants[names[0]].data_type not in _TYPES:
            continue
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        scale, zero = (numpy_helper.to_array(constants[name]).astype(np.float64) for name in names[1:])
        if scale.ndim > 1 or attributes.get("block_size"):
            continue  # one scale per block
        dtype = _TYPES[constants[names[0]].data_type]
        centre = 0 if dtype.is_signed else (dtype.highest + 1) // 2
        axis = attributes.get("axis", 1) % len(constants[names[0]].dims)
        spec = TensorSpec(dtype, bool((zero == centre).all()), PerChannel(axis) if scale.size > 1 else PerTensor())
        numbers = tuple(scale.reshape(-1).tolist()), tuple(int(value) for value in zero.reshape(-1))
        yield StoredWeight(f"{node.output[0]}_float", spec, *numbers, (names[1], names[2]))


def with_stored(job: Job, stored: Unquantized) -> Job:
    """Return the job in which weights have the stored types, scales and zero points, and activations the ranges."""
    recipe, weights = job.recipe, stored.weights
    symmetric = recipe.plan.activation.symmetric
    ranges = tuple(
        GivenRange(entry.tensor, (entry.symmetric_low if symmetric else entry.low,), (entry.high,), optional=True)
        for entry in stored.ranges
    )
    types = tuple(TensorTypes((weight.tensor,), weight.spec, optional=True) for weight in weights)
    given = tuple(
        GivenRange(weight.tensor, scale=weight.scale, zero_point=weight.zero_point, optional=True) for weight in weights
    )
    plan = replace(recipe.plan, tensors=(*types, *recipe.plan.tensors))
    scale = replace(recipe.scale, given=(*given, *ranges, *recipe.scale.given))
    return replace(job, recipe=replace(recipe, plan=plan, scale=scale))
