"""Our translations: ``scaled_dot_product_attention`` for any number of axes and without computed shapes, and marks."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset18

op: Any = opset18  # its types are those of eager tensors


def attention(  # noqa: PLR0913, PLR0917 - the arguments of torch's operator
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - a captured graph is one for inference
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Write ``softmax(scale * Q @ K^T + mask) @ V``."""
    rank = len(query.shape)
    if enable_gqa:
        key, value = (_repeated(heads, query.shape[-3] // heads.shape[-3]) for heads in (key, value))
    order = [*range(rank - 2), rank - 1, rank - 2]
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = op.Mul(op.MatMul(query, op.Transpose(key, perm=order)), _number(factor))
    if is_causal:
        allowed = np.tril(np.ones((query.shape[-2], key.shape[-2]), bool))
        scores = op.Where(op.Constant(value=ir.tensor(allowed)), scores, _number(-math.inf))
    if attn_mask is not None:
        is_choice = attn_mask.dtype == ir.DataType.BOOL
        scores = op.Where(attn_mask, scores, _number(-math.inf)) if is_choice else op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _number(value: float) -> Any:
    return op.Constant(value=ir.tensor(np.float32(value)))


def _repeated(heads: Any, count: int) -> Any:
    """Repeat each head for a group of queries."""
    index = np.repeat(np.arange(heads.shape[-3]), count)
    return op.Gather(heads, op.Constant(value=ir.tensor(index)), axis=len(heads.shape) - 3)


def identity(value: Any) -> Any:
    """Write a mark of `quantry.torchfront.quant_stubs`, which computes nothing."""
    return op.Identity(value)
