"""All constraints of integer NPUs with power-of-two scales."""

from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from quantry.check.as_pairs import write_as_pairs
from quantry.check.pairs import QdqTensors, is_dequantize, is_quantize
from quantry.check.rules import Violation, closure_violations, foreign_violations, parameter_violations
from quantry.errors import ModelError
from quantry.graph.load import ModelLike, model_source
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import name_nodes
from quantry.numerics.power_of_two import scale_at
from quantry.scale.npu import LIMITS, find_units


def check_npu(model: ModelLike) -> tuple[Violation, ...]:
    """Return where a quantized model violates a constraint of AMD's NPUs with power-of-two int8 arithmetic.

    The constraints: power-of-two scales, one per tensor; centred zero points; int8 weights and biases, 8-bit
    activations; every operator between Q/DQ pairs; and the limits on positions of `quantry.recipe.NpuLimits`.

    Args:
        model: A model with QuantizeLinear and DequantizeLinear nodes of any dialect, with FixNeuron nodes, or with
            integer operators (QOperator): a path, bytes, a proto or an onnx-ir model. Every node that quantizes at run
            time or in blocks is a violation.

    Returns:
        The violations: formats first, then by tensor and by node, in graph order; empty if the NPU can run the model.

    Raises:
        ModelError: The model cannot be read or is not quantized.

    Example:
        >>> for violation in check_npu("model.int8.onnx"):  # doctest: +SKIP
        ...     print(violation)
    """
    source = model_source(model)
    loaded = source.load()
    # Scales and weights may come from Constant nodes, and types of intermediate tensors need not be stored.
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(loaded)
    name_nodes(loaded)
    nodes = len(loaded.graph)
    write_as_pairs(loaded)
    foreign = tuple(foreign_violations(loaded.graph))
    has_pairs = any(is_dequantize(node) for node in loaded.graph)
    if foreign and not has_pairs:
        return foreign
    if not has_pairs:
        raise ModelError(
            f"a model to check must be quantized, with Q/DQ pairs, FixNeuron nodes or integer operators, got none of "
            f"them among {nodes} nodes of {source.label}; quantize it first"
        )
    infer_shapes(loaded)
    return (*foreign, *_violations(loaded.graph))


def _violations(graph: ir.Graph) -> Iterator[Violation]:
    tensors = QdqTensors(graph)
    for name, tensor in tensors.tensors.items():
        yield from parameter_violations(name, tensor)
    operators = [node for node in graph if not is_quantize(node) and not is_dequantize(node)]
    for node in operators:
        yield from closure_violations(node)
    positions = tensors.positions()
    for unit in find_units(operators, tensors):
        for limit in LIMITS:
            finding = limit.find(unit, positions)
            if finding is not None:
                yield Violation(unit.node, limit.name.replace("_", " "), finding.values, _advice(finding.moves))


def _advice(moves: Mapping[str, int]) -> str:
    parts = (f"{tensor!r} to position {move} (scale {scale_at(move):g})" for tensor, move in moves.items())
    return f"move {', '.join(parts)} and quantize the float model again"
