"""Every tiny model under three presets, as text that a reviewer can read."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
from golden_models import MODELS, samples

from quantry import QuantizationResult, quantize
from quantry.numerics.tensor_params import TensorParams

FOLDER = Path(__file__).with_name("graphs")
PRESETS = ("XINT8", "S8S8_AAWS", "CPU_INT8")


def golden_file(model: str, preset: str) -> Path:
    """Return the path of the text of one model under one preset."""
    return FOLDER / f"{model}.{preset}.txt"


def graph_text(model: str, preset: str) -> str:
    """Quantize one model and describe the result."""
    proto = MODELS[model]()
    return describe(quantize(proto, samples(proto), preset, store=None))


def write_graphs() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for model in MODELS:
        for preset in PRESETS:
            golden_file(model, preset).write_text(graph_text(model, preset), encoding="utf-8")


def describe(result: QuantizationResult) -> str:
    """Return inputs and outputs, nodes, integer constants, scales and declined nodes, one line each."""
    graph = result.model.graph
    lines = [
        *(f"input {_typed(value)}" for value in graph.inputs),
        *(f"output {_typed(value)}" for value in graph.outputs),
        "",
        *(_node(node) for node in graph),
        "",
        *(_constant(value) for value in graph.initializers.values() if value.name and _shown(value.name)),
        "",
        *(_params(name, params) for name, params in result.params.tensors.items()),
        "",
        *(f"float {entry.node} ({entry.operator}): {entry.reason}" for entry in result.declined),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _typed(value: ir.Value) -> str:
    shape = "?" if value.shape is None else ",".join(str(dim) for dim in value.shape)
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{value.name}: {dtype}[{shape}]"


def _node(node: ir.Node) -> str:
    inputs = ", ".join("" if value is None else str(value.name) for value in node.inputs)
    outputs = ", ".join(str(value.name) for value in node.outputs)
    attributes = ", ".join(f"{name}={attribute.value}" for name, attribute in sorted(node.attributes.items()))
    operator = node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
    return f"{outputs} = {operator}({inputs})" + (f" {{{attributes}}}" if attributes else "")


def _shown(name: str) -> bool:
    # Scales and zero points have lines of their own.
    return not name.endswith(("_scale", "_zero_point"))


def _constant(value: ir.Value) -> str:
    assert value.const_value is not None
    numbers = " ".join(f"{number:g}" for number in value.const_value.numpy().astype(np.float64).ravel())
    return f"{_typed(value)} = {numbers}"


def _params(name: str, params: TensorParams) -> str:
    scales = " ".join(f"{scale:.7g}" for scale in params.scale.ravel())
    zero_points = " ".join(str(zero_point) for zero_point in params.zero_point.ravel())
    axis = "" if params.axis is None else f" along axis {params.axis}"
    return f"{name}: {params.dtype.value}{axis}, scale {scales}, zero point {zero_points}"
