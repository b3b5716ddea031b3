"""Linear layers (Conv, ConvTranspose, Gemm, MatMul with constant weights) and where their channels are.

Every weight is seen in one shape, groups x outputs x inputs x kernel, whatever the operator.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, int_of, producers_of
from quantry.graph.weights import new_initializer, tensor_from_array


@dataclass(frozen=True)
class ChannelLayout:
    """Where a weight has its output and input channels.

    Conv weights are ``(outputs, inputs/groups, ...)``. ConvTranspose weights are ``(inputs, outputs/groups, ...)``, and
    those of MatMul, and of Gemm without ``transB``, ``(inputs, outputs)``: there the input comes first.

    Attributes:
        groups: Number of groups; no output reads the inputs of another group.
        outputs: Output channels of all groups.
        inputs: Input channels of all groups.
        input_first: Whether the first axis counts inputs.
    """

    groups: int
    outputs: int
    inputs: int
    input_first: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads only the input channel with the same index."""
        return self.groups == self.inputs == self.outputs

    def view(self, weight: np.ndarray) -> np.ndarray:
        """Return a contiguous weight as ``(groups, outputs/groups, inputs/groups, kernel)``, sharing its memory."""
        outputs, inputs = self.outputs // self.groups, self.inputs // self.groups
        if self.input_first:
            return weight.reshape(self.groups, inputs, outputs, -1).swapaxes(1, 2)
        return weight.reshape(self.groups, outputs, inputs, -1)

    def scaled(self, weight: np.ndarray, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Return the weight times one factor per output and per input channel, computed in float64 and rounded once.

        Args:
            weight: In the operator's own shape.
            outputs: (outputs,) factors.
            inputs: (inputs,) factors.
        """
        # A contiguous copy, so that `view` shares its memory and multiplying the view multiplies the copy.
        result = np.array(weight, dtype=np.float64, order="C")
        channels = self.view(result)
        channels *= outputs.reshape(self.groups, -1, 1, 1)
        channels *= inputs.reshape(self.groups, 1, -1, 1)
        return result.astype(weight.dtype)

    def taken(self, weight: np.ndarray, outputs: np.ndarray | None, inputs: np.ndarray | None) -> np.ndarray:
        """Return the weight with its channels reordered or repeated; None keeps them.

        Args:
            weight: In the operator's own shape; with one group, or depthwise, where ``outputs`` selects groups.
            outputs: Old indices of the new output channels.
            inputs: Old indices of the new input channels; None for a depthwise weight.
        """
        # In a depthwise weight the first axis is both groups and outputs.
        if self.groups > 1:
            return np.ascontiguousarray(weight if outputs is None else weight[outputs])
        first, second = (inputs, outputs) if self.input_first else (outputs, inputs)
        rows = weight if first is None else weight[first]
        return np.ascontiguousarray(rows if second is None else rows[:, second])


def scaled_bias(bias: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return a bias times one factor per output channel; the bias has them on its last axis, or is one number."""
    product: np.ndarray = _spread(bias, len(outputs)) * outputs
    return product.astype(bias.dtype)


def shifted_bias(bias: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return a bias plus one constant per output channel."""
    total: np.ndarray = _spread(bias, len(outputs)) + outputs
    return total.astype(bias.dtype)


def taken_bias(bias: np.ndarray, order: np.ndarray, outputs: int) -> np.ndarray:
    """Return a bias of ``outputs`` channels with its channels reordered or repeated."""
    return np.ascontiguousarray(_spread(bias, outputs)[..., order]).astype(bias.dtype)


def bias_magnitude(bias: np.ndarray | None, outputs: int) -> np.ndarray:
    """Return the largest magnitude of a bias in each of ``outputs`` channels, (outputs,) float64; 0 without a bias."""
    if bias is None:
        return np.zeros(outputs)
    peak: np.ndarray = np.abs(_spread(bias, outputs)).reshape(-1, outputs).max(axis=0)
    return peak


def _spread(bias: np.ndarray, outputs: int) -> np.ndarray:
    wide = np.atleast_1d(bias).astype(np.float64)
    return np.broadcast_to(wide, (*wide.shape[:-1], outputs))


# The prepare stage has converted float16 weights to float32.
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear node with its constants, and where its channels are.

    Attributes:
        node: The operator.
        layout: Channels of its weight.
        weight: An initializer that no other node reads.
        bias: An initializer that no other node reads, or None. A MatMul takes it from the Add after it.
        output: The result, bias included.
        output_axis: The axis of ``output`` that counts output channels.
        input_axis: The axis of the first input that counts input channels.
    """

    node: ir.Node
    layout: ChannelLayout
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value
    output_axis: int
    input_axis: int


def linear_layer(node: ir.Node) -> LinearLayer | str:
    """Return a node of `LINEAR` as a layer, or why its channels cannot be scaled."""
    weight = node.inputs[1]
    if not is_own(weight):
        return "its weight is not constant, or is shared with another node"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not is_own(bias):
        return "its bias is not constant, or is shared with another node"
    assert weight is not None
    if node.op_type == "MatMul":
        return _matmul(node, weight)
    if node.op_type == "Gemm":
        return _gemm(node, weight, bias)
    lengths = _lengths(weight)
    if len(lengths) < 3:
        return f"the weight of {node.op_type} has no spatial axes"
    rows, columns = lengths[:2]
    groups = int_of(node, "group", 1)
    layout = (
        ChannelLayout(groups, rows, columns * groups, input_first=False)
        if node.op_type == "Conv"
        else ChannelLayout(groups, columns * groups, rows, input_first=True)
    )
    return LinearLayer(node, layout, weight, bias, node.outputs[0], 1, 1)


def layer_of(value: ir.Value) -> LinearLayer | None:
    """Return the layer whose result, including the bias, is a tensor."""
    producer = value.producer()
    nodes = [] if producer is None else producers_of(producer) if producer.op_type == "Add" else [producer]
    for node in nodes:
        layer = linear_layer(node) if node.op_type in LINEAR and node.domain == "" else ""
        if isinstance(layer, LinearLayer) and layer.output is value:
            return layer
    return None


def _gemm(node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> LinearLayer | str:
    # The first axis of a transposed input counts channels and the second the batch, unlike everywhere else.
    if int_of(node, "transA", 0):
        return "Gemm transposes its input"
    rows, columns = _lengths(weight)
    layout = (
        ChannelLayout(1, rows, columns, input_first=False)
        if int_of(node, "transB", 0)
        else ChannelLayout(1, columns, rows, input_first=True)
    )
    return LinearLayer(node, layout, weight, bias, node.outputs[0], 1, 1)


def _matmul(node: ir.Node, weight: ir.Value) -> LinearLayer | str:
    source = node.inputs[0]
    lengths = _lengths(weight)
    # In a stack of matrices each has its own channels.
    if len(lengths) != 2:
        return "MatMul multiplies with more than one matrix"
    output, bias = _with_added_bias(node, lengths[1])
    if source is None or source.shape is None or output.shape is None:
        return "the rank of MatMul's operands is not known"
    layout = ChannelLayout(1, lengths[1], lengths[0], input_first=True)
    return LinearLayer(node, layout, weight, bias, output, len(output.shape) - 1, len(source.shape) - 1)


def _with_added_bias(node: ir.Node, channels: int) -> tuple[ir.Value, ir.Value | None]:
    """Return the output and the bias of ``MatMul -> Add(bias)``, or the MatMul's own output and None."""
    output = node.outputs[0]
    readers = tuple(output.uses())
    if len(readers) != 1 or output.is_graph_output():
        return output, None
    add, index = readers[0]
    if add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
        return output, None
    bias = add.inputs[1 - index]
    if not is_own(bias):
        return output, None
    assert bias is not None
    # A bias with more axes is scaled along its last one, which must be that of the channels.
    lengths = _lengths(bias)
    return (add.outputs[0], bias) if not lengths or lengths[-1] in (1, channels) else (output, None)


def is_own(value: ir.Value | None) -> bool:
    """Whether a value is a float initializer that is no graph input and has a single reader."""
    return (
        value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and not value.is_graph_output()
        and value.const_value is not None
        and value.const_value.dtype in _TYPES
        and value.const_value.size > 0
        and len(value.uses()) == 1
    )


def _lengths(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(int(length) for length in value.const_value.shape.numpy())


def store_array(value: ir.Value, array: np.ndarray) -> None:
    """Replace the array of an initializer."""
    value.const_value = tensor_from_array(array, value.name or "")
    value.shape = ir.Shape(array.shape)


def array_of(value: ir.Value) -> np.ndarray:
    """Return the array of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def store_input(node: ir.Node, index: int, array: np.ndarray, names: FreshNames) -> None:
    """Give a node another constant; one that other nodes read as well stays as it is."""
    value = node.inputs[index]
    assert value is not None
    typed = array.astype(array_of(value).dtype, order="C")
    if is_own(value):
        store_array(value, typed)
        return
    copy = new_initializer(names.value(value.name or "constant"), typed)
    assert node.graph is not None
    node.graph.register_initializer(copy)
    node.replace_input_with(index, copy)
