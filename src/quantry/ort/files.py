"""The form in which onnxruntime writes models."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from quantry.emit.saturated_bounds import remove_saturated_bounds
from quantry.files import write_file
from quantry.graph.quant_plan import DerivedBiasPlan, QuantPlan
from quantry.graph.save import write_model

_MOST = 4096  # Scales and zero points, not weights.


def write_without_saturated_bounds(path: Path) -> None:
    """Remove each Relu and Clip that the QuantizeLinear after it makes redundant, in place."""
    model = ir.load(path)
    if remove_saturated_bounds(model):
        write_model(model, path)


def write_as_onnxruntime(path: Path, plan: QuantPlan, stored: Mapping[str, tuple[str, str]]) -> None:
    """Give a model the names and shapes that tools for onnxruntime's models read.

    Scales and zero points lie in typed fields, the scale of a bias has one axis, the parameters of a conversion end
    with ``_convert``, and a conversion has a DequantizeLinear of its own.

    Args:
        path: The model, changed in place; weights in external files are not touched.
        plan: What was quantized.
        stored: Names of scale and zero point of weights that were stored as integers in the user's model, by weight.
    """
    model = onnx.load(path, load_external_data=False)
    renamed = _names(plan, stored)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        _write_typed(tensor, plan)
        tensor.name = renamed.get(tensor.name, tensor.name)
    _separate_conversions(model.graph)
    write_file(path, model.SerializeToString())


def _names(plan: QuantPlan, stored: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    renamed = {
        f"{name}_{kind}": f"{conversion.tensor}_{kind}_convert"
        for name, conversion in plan.conversions.items()
        for kind in ("scale", "zero_point")
    }
    for weight, names in stored.items():
        renamed |= dict(zip((f"{weight}_scale", f"{weight}_zero_point"), names, strict=True))
    return renamed


def _write_typed(tensor: onnx.TensorProto, plan: QuantPlan) -> None:
    name = tensor.name.removesuffix("_scale").removesuffix("_zero_point")
    size = 1
    for length in tensor.dims:
        size *= length
    if name == tensor.name or size > _MOST or not tensor.HasField("raw_data"):
        return
    if isinstance(plan.biases.get(name), DerivedBiasPlan) and tensor.dims:
        return  # onnxruntime computes these as one array
    array = numpy_helper.to_array(tensor)
    dims = [1] if name in plan.biases and not tensor.dims else tensor.dims
    tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, dims, array.flatten().tolist()))


def _separate_conversions(graph: onnx.GraphProto) -> None:
    """Copy a DequantizeLinear that a QuantizeLinear and other nodes read.

    onnxruntime takes DequantizeLinear, QuantizeLinear as one unit, which must not share nodes with others::

        Q -> DQ -+-> Conv          becomes      Q -+-> DQ -> Conv
                 +-> Q16 -> DQ16                   +-> DQ' -> Q16 -> DQ16
    """
    outputs = {value.name for value in graph.output}
    nodes: list[onnx.NodeProto] = []
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        nodes.append(node)
        consumers = readers.get(node.output[0], []) if node.op_type == "DequantizeLinear" else []
        conversions = [reader for reader in consumers if reader.op_type == "QuantizeLinear"]
        if not conversions or (len(consumers) == len(conversions) and node.output[0] not in outputs):
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = f"{node.name}_convert", f"{node.output[0]}_convert"
        nodes.append(copy)
        for reader in conversions:
            reader.input[0] = copy.output[0]
    # Nodes that read constants only come first, as onnxruntime sorts them.
    constants = {tensor.name for tensor in graph.initializer}
    nodes.sort(key=lambda node: not all(name in constants for name in node.input))
    del graph.node[:]
    graph.node.extend(nodes)
