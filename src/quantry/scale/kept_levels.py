"""Products with a constant number: the result has the levels of the input times the number.

::

    x -> Q/DQ (scale s) -> Mul (0.125) -> Q/DQ (scale 0.125 s)

Such a product only changes what the integers stand for. With a scale of its own, its result would be rounded a second
time, to levels that lie between those of the input.
"""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from quantry.graph.quant_plan import OwnRange, QuantPlan, SharedRange
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import PowerOfTwoScale

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def with_kept_levels(graph: ir.Graph, plan: QuantPlan, params: Mapping[str, TensorParams]) -> dict[str, TensorParams]:
    """Return parameters of activations in which products with a constant number keep the levels of their input.

    Args:
        graph: The float graph, sorted.
        plan: The plan of each activation, and which tensors share parameters.
        params: The parameters that each tensor would have on its own.
    """
    current, nodes = dict(params), set(plan.quantized_nodes)
    converted = {conversion.tensor for conversion in plan.conversions.values()}
    followers: dict[str, list[str]] = {}
    for tensor in plan.activations:
        followers.setdefault(plan.root(tensor), []).append(tensor)
    for node in graph:
        source, factor = scaled_operand(node) if node.name in nodes else ("", 0.0)
        result = node.outputs[0].name or "" if node.outputs else ""
        if not {source, result} <= current.keys() or not _same_type(plan, source, result) or source in converted:
            continue
        source_params = current[source]
        scale = np.asarray(source_params.scale * np.float32(factor), np.float32)
        if source_params.axis is None and _SMALLEST_NORMAL < scale < np.inf:
            scaled = TensorParams(source_params.dtype, scale, source_params.zero_point, limits=source_params.limits)
            current |= dict.fromkeys(followers[result], scaled)
    return current


def scaled_operand(node: ir.Node) -> tuple[str, float]:
    """Return the tensor that a node multiplies with a constant positive number, and the number; else nothing and 0."""
    if node.op_type not in ("Mul", "Div") or node.domain != "" or len(node.inputs) != 2:
        return "", 0.0
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        constant, operand = node.inputs[index], node.inputs[1 - index]
        tensor = None if constant is None else constant.const_value
        if tensor is None or tensor.size != 1 or operand is None or operand.const_value is not None:
            continue
        number = float(tensor.numpy().reshape(()))
        if math.isfinite(number) and number > 0:
            return operand.name or "", number if node.op_type == "Mul" else 1 / number
    return "", 0.0


def _same_type(plan: QuantPlan, source: str, result: str) -> bool:
    """Return whether the result is calibrated on its own, with float scales, and has the type of the source."""
    range_plan, root = plan.activations.get(result), plan.activations.get(plan.root(source))
    if not isinstance(range_plan, OwnRange) or root is None or isinstance(root, SharedRange):
        return False
    return range_plan.spec == root.spec and not isinstance(range_plan.spec.scale, PowerOfTwoScale)
