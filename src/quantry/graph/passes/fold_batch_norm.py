"""Fold BatchNormalization into the linear operator before it.

::

    x -> Conv(W, B) -> BatchNormalization(gamma, beta, mean, var) -> y     becomes     x -> Conv(W', B') -> y

    g  = gamma / sqrt(var + epsilon)          one factor for each output channel
    W' = W * g,   B' = (B - mean) * g + beta  in float64, rounded once
"""

from collections import Counter
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from quantry.facts.operators import BIASED
from quantry.graph.edit import FreshNames, bypass, constant_of, float_of, int_of
from quantry.graph.weights import new_initializer, tensor_from_array
from quantry.notes import Note, NoteKind, one_per_reason


@dataclass(frozen=True)
class _Affine:
    """A BatchNormalization per channel: ``y = x * factor + offset``; both float64, one value per channel."""

    factor: np.ndarray
    offset: np.ndarray


def fold_batch_norm(model: ir.Model) -> tuple[Note, ...]:
    """Fold every BatchNormalization that follows a Conv, ConvTranspose or Gemm into its weight and bias.

    It stays if the linear operator's result has another reader or is a graph output, if weights are not constant, or
    if it is in training mode; the notes count the reasons.
    """
    names = FreshNames(model)
    reasons: Counter[str] = Counter()
    folded = 0
    for node in tuple(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "BatchNormalization" or node.domain != "":
            continue
        reason = _fold(node, names)
        if reason:
            reasons[reason] += 1
        else:
            folded += 1
    done = (Note.of("folded {count} BatchNormalization nodes", NoteKind.GRAPH, count=folded),) if folded else ()
    return done + one_per_reason("kept {count} BatchNormalization nodes: {reason}", reasons)


def _fold(norm: ir.Node, names: FreshNames) -> str:
    """Fold one node; return the reason if that is impossible, else an empty string."""
    source = norm.inputs[0]
    linear = source.producer() if source is not None else None
    if source is None or linear is None or linear.domain != "" or linear.op_type not in BIASED:
        return "no Conv, ConvTranspose or Gemm before it"
    if len(source.uses()) > 1 or source.is_graph_output() or linear.graph is not norm.graph:
        return "the result before it has another reader"
    affine = _affine(norm)
    if affine is None:
        return "its statistics are not constant, or it is in training mode"
    weight = constant_of(linear.inputs[1])
    bias_value = linear.inputs[2] if len(linear.inputs) > 2 else None
    bias = constant_of(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return "the weights before it are not constant"
    fold = _folded_gemm if linear.op_type == "Gemm" else _folded_conv
    folded = fold(linear, weight, bias, affine)
    if folded is None:
        return "its channels do not match the weights before it"
    if not all(bool((np.abs(array) <= ml_dtypes.finfo(weight.dtype).max).all()) for array in folded):
        return "its factors are too large for the weights before it"
    if not bypass(norm, source):
        return "its result is a graph output that cannot be renamed"
    _store(linear, 1, folded[0].astype(weight.dtype), names)
    _store(linear, 2, folded[1].astype(weight.dtype), names)
    linear.attributes.pop("beta", None)
    return ""


def _affine(norm: ir.Node) -> _Affine | None:
    if int_of(norm, "training_mode", 0) or any(output.uses() for output in norm.outputs[1:]):
        return None
    parameters = [constant_of(value) for value in norm.inputs[1:5]]
    arrays = [array.astype(np.float64) for array in parameters if array is not None]
    if len(arrays) != 4:
        return None
    gamma, beta, mean, variance = arrays
    epsilon = float_of(norm, "epsilon", 1e-5)
    factor = gamma / np.sqrt(variance + epsilon)
    return _Affine(factor, beta - mean * factor)


def _folded_conv(
    conv: ir.Node, weight: np.ndarray, bias: np.ndarray | None, affine: _Affine
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weight and bias of a convolution with the channel factors multiplied in.

    Conv weights are (M, C/group, ...), ConvTranspose weights (C, M/group, ...), M being the output channels.
    """
    channels = len(affine.factor)
    tail = (1,) * (weight.ndim - 2)
    if conv.op_type == "Conv":
        if weight.shape[0] != channels:
            return None
        scaled = weight.astype(np.float64) * affine.factor.reshape(-1, 1, *tail)
    else:
        group = int_of(conv, "group", 1)
        if weight.shape[1] * group != channels:
            return None
        grouped = weight.astype(np.float64).reshape(group, -1, *weight.shape[1:])
        scaled = (grouped * affine.factor.reshape(group, 1, -1, *tail)).reshape(weight.shape)
    start = np.zeros(channels) if bias is None else bias.astype(np.float64)
    return scaled, start * affine.factor + affine.offset


def _folded_gemm(
    gemm: ir.Node, weight: np.ndarray, bias: np.ndarray | None, affine: _Affine
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weight and bias of ``alpha * A @ W + beta * C``; beta is multiplied into C, so it becomes 1."""
    transposed = bool(int_of(gemm, "transB", 0))
    channels = len(affine.factor)
    if weight.shape[0 if transposed else 1] != channels:
        return None
    if bias is not None and (bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1)):
        return None
    beta = float_of(gemm, "beta", 1.0)
    scaled = weight.astype(np.float64) * (affine.factor.reshape(-1, 1) if transposed else affine.factor)
    start = (
        np.zeros(channels) if bias is None else np.broadcast_to(bias.reshape(-1), channels).astype(np.float64) * beta
    )
    return scaled, start * affine.factor + affine.offset


def _store(linear: ir.Node, index: int, array: np.ndarray, names: FreshNames) -> None:
    """Store a weight under its old name, or under a new one if the old weight has other users."""
    old = linear.inputs[index] if index < len(linear.inputs) else None
    graph = linear.graph
    assert graph is not None
    if old is not None and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = tensor_from_array(array, old.name or "")
        old.shape = ir.Shape(array.shape)
        return
    name = names.value(f"{old.name}_{linear.name}" if old is not None else f"{linear.name}_bias")
    value = new_initializer(name, array)
    graph.register_initializer(value)
    if index >= len(linear.inputs):
        linear.resize_inputs(index + 1)
    linear.replace_input_with(index, value)
