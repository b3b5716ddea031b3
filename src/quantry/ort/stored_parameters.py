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

from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, bypass
from quantry.graph.load import model_source
from quantry.graph.qdq import dequantizers_of, is_dequantize, is_quantize, tensor_of
from quantry.graph.weights import new_initializer
from quantry.onnx.model_tools import TOOLS
from quantry.onnx.translate import Job
from quantry.recipe import DataType, GivenRange, PerChannel, PerTensor, TensorSpec, TensorTypes

_TYPES = {ir.DataType[name]: DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4")}


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
    weights = tuple(_weights(loaded))
    ranges = tuple(_with_clips(loaded))
    return Unquantized(TOOLS["remove_qdq"].run(ir.serde.serialize_model(loaded)), weights, ranges)


def _with_clips(model: ir.Model) -> Iterator[StoredRange]:
    """Replace each Q/DQ pair with one scale by a Clip, in place, and yield its range."""
    names = FreshNames(model)
    for node in list(model.graph):
        tensor, source = tensor_of(node) if is_quantize(node) else None, node.inputs[0] if node.inputs else None
        readers = dequantizers_of(node.outputs[0])
        if tensor is None or source is None or not readers or not tensor.is_fixed:
            continue
        if tensor.step is None or tensor.limits is None:
            continue
        offset = tensor.offset
        low, high = ((end - offset) * tensor.step for end in tensor.limits)
        # No Relu can have stood before a pair of the model's input.
        limited = source if source.producer() is None else _clipped(node, source, (low, high), names)
        for reader in readers:
            bypass(reader, limited)
        yield StoredRange(str(limited.name), low, high, -high if offset == 0 and tensor.limits[0] else low)


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


def _weights(model: ir.Model) -> Iterator[StoredWeight]:
    """Yield the weights of linear layers that a model stores as integers with constant scales and zero points."""
    for node in model.graph:
        tensor = tensor_of(node) if is_dequantize(node) else None
        restored = node.outputs[0]
        if tensor is None or not any(use.idx == 1 and use.node.op_type in LINEAR for use in restored.uses()):
            continue
        scales, levels, zero_points = tensor.scales, tensor.levels, tensor.zero_points
        if scales is None or levels is None or not tensor.is_fixed or tensor.dtype not in _TYPES:
            continue
        if scales.ndim > 1 or tensor.block_size:
            continue  # one scale per block
        dtype = _TYPES[tensor.dtype]
        centre = 0 if dtype.is_signed else (dtype.highest + 1) // 2
        axis = 1 if tensor.axis is None else tensor.axis
        granularity = PerChannel(axis % levels.ndim) if scales.size > 1 else PerTensor()
        yield StoredWeight(
            f"{restored.name}_float",
            TensorSpec(dtype, bool((zero_points == centre).all()), granularity),
            tuple(scales.astype(np.float64).reshape(-1).tolist()),
            tuple(zero_points.reshape(-1).tolist()),
            (str(tensor.parameters[0].name), str(tensor.parameters[1].name)),
        )


def with_stored(job: Job, stored: Unquantized) -> Job:
    """Return the job in which weights have the stored types, scales and zero points, and activations the ranges."""
    recipe, weights = job.recipe, stored.weights
    symmetric = recipe.plan.activation.symmetric
    ranges = tuple(
        GivenRange(entry.tensor, (entry.symmetric_low if symmetric else entry.low,), (entry.high,), optional=True)
        for entry in stored.ranges
    )
    types = tuple(TensorTypes((weight.tensor,), weight.spec, optional=True) for weight in weights)
    ranges = tuple(
        GivenRange(weight.tensor, scale=weight.scale, zero_point=weight.zero_point, optional=True) for weight in weights
    )
    plan = replace(recipe.plan, tensors=(*types, *recipe.plan.tensors))
    scale = replace(recipe.scale, given=(*ranges, *ranges, *recipe.scale.given))
    return replace(job, recipe=replace(recipe, plan=plan, scale=scale))
