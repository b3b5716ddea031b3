"""Recurrent layers, whose gates ONNX and torch store in another order.

::

    LSTM   ONNX: input, output, forget, cell          torch: input, forget, cell, output
    GRU    ONNX: update, reset, hidden                torch: reset, update, hidden
"""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

_LSTM_GATES, _GRU_GATES, _RNN_GATES = (0, 2, 3, 1), (1, 0, 2), (0,)


def lstm(  # noqa: PLR0917 - the inputs of ONNX
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,  # noqa: ARG001 - refused
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    *,
    hidden_size: int,
    direction: str = "forward",
    layout: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """ONNX LSTM: all hidden states, the last one and the last cell."""
    start = _start(x, (hidden, cell), weight.shape[0], hidden_size, layout)
    weights = _weights((weight, recurrence, bias), _LSTM_GATES, hidden_size)
    states, last, memory = _run(torch.lstm, x, start, weights, direction, layout)
    return (states, *(state.transpose(0, 1) if layout else state for state in (last, memory)))


def gru(
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,  # noqa: ARG001 - refused
    hidden: Tensor | None = None,
    *,
    hidden_size: int,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,  # noqa: ARG001 - refused unless 1
) -> tuple[Tensor, Tensor]:
    """ONNX GRU: all hidden states and the last one."""
    weights = _weights((weight, recurrence, bias), _GRU_GATES, hidden_size)
    return _with_one_state(torch.gru, x, hidden, weights, (hidden_size, direction, layout))


def rnn(
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,  # noqa: ARG001 - refused
    hidden: Tensor | None = None,
    *,
    hidden_size: int,
    direction: str = "forward",
    layout: int = 0,
    activations: Sequence[str] = (),
) -> tuple[Tensor, Tensor]:
    """ONNX RNN: all hidden states and the last one."""
    weights = _weights((weight, recurrence, bias), _RNN_GATES, hidden_size)
    function = torch.rnn_relu if "Relu" in activations else torch.rnn_tanh
    return _with_one_state(function, x, hidden, weights, (hidden_size, direction, layout))


def _with_one_state(
    function: Callable[..., Any],
    x: Tensor,
    hidden: Tensor | None,
    weights: list[Tensor],
    settings: tuple[int, str, int],
) -> tuple[Tensor, Tensor]:
    """Run a network whose state is one tensor; the settings are hidden_size, direction and layout."""
    size, direction, layout = settings
    (start,) = _start(x, (hidden,), 2 if direction == "bidirectional" else 1, size, layout)
    states, last = _run(function, x, start, weights, direction, layout)
    return states, last.transpose(0, 1) if layout else last


def _start(x: Tensor, states: Sequence[Tensor | None], directions: int, size: int, layout: int) -> tuple[Tensor, ...]:
    """Return the first states as [directions, batch, size]."""
    zeros = x.new_zeros(directions, x.shape[0 if layout else 1], size)
    turned = (state if state is None or not layout else state.transpose(0, 1) for state in states)
    return tuple(zeros if state is None else state.contiguous() for state in turned)


def _weights(tensors: Sequence[Tensor | None], order: Sequence[int], size: int) -> list[Tensor]:
    """Return torch's weights of each direction: of the input, of the state, and both biases."""
    weight, recurrence, bias = tensors
    assert weight is not None
    assert recurrence is not None
    rows = torch.cat([torch.arange(gate * size, (gate + 1) * size) for gate in order]).to(weight.device)
    ordered: list[Tensor] = []
    for at in range(weight.shape[0]):
        ordered += [weight[at].index_select(0, rows), recurrence[at].index_select(0, rows)]
        if bias is not None:
            ordered += [block.index_select(0, rows) for block in bias[at].chunk(2)]
    return ordered


def _run(
    function: Callable[..., Any], x: Tensor, start: Any, weights: list[Tensor], direction: str, layout: int
) -> tuple[Tensor, ...]:
    if layout:
        x = x.transpose(0, 1)
    x = x.flip(0) if direction == "reverse" else x
    two = direction == "bidirectional"
    biased = len(weights) == (8 if two else 4)
    states, *last = function(x, start, weights, biased, 1, 0.0, False, two, False)  # noqa: FBT003 - torch's order
    states = states.flip(0) if direction == "reverse" else states
    length, batch, _ = states.shape
    states = states.reshape(length, batch, 2 if two else 1, -1).transpose(1, 2)
    return (states.permute(2, 0, 1, 3) if layout else states, *last)


def recurrent_refusal(node: ir.Node) -> str | None:
    """Return why a recurrent layer cannot be computed, or None."""
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        return f"{node.op_type} with sequence_lens has no function in torch here"
    if len(node.inputs) > 7 and node.inputs[7] is not None:
        return f"{node.op_type} with peepholes has no function in torch here"
    if node.attributes.get_int("input_forget", 0):
        return f"{node.op_type} with input_forget has no function in torch here"
    if node.op_type == "GRU" and node.attributes.get_int("linear_before_reset", 0) == 0:
        return "GRU with linear_before_reset 0 has no function in torch here"
    names = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[node.op_type]
    functions = list(node.attributes.get_strings("activations", ()) or names)
    two = node.attributes.get_string("direction", "forward") == "bidirectional"
    allowed = [names * (2 if two else 1)] + ([["Relu"] * (2 if two else 1)] if node.op_type == "RNN" else [])
    if functions not in allowed and functions != names:
        return f"{node.op_type} with activations {', '.join(functions)} has no function in torch here"
    return None
