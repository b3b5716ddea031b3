"""Rotation of residual streams, after SliceGPT (https://arxiv.org/abs/2401.15024) and QuaRot (2404.00456).

A normalization without factors and offsets commutes with every orthogonal matrix that keeps the vector of ones,
because mean and variance stay the same::

    s -> LayerNormalization -> y = gamma * n + beta           s: a few channels 100x larger than the others
    Q s -> LayerNormalization -> Q n                          Q s: all channels alike

Layers that write into the stream compute ``Q s``: their weights are multiplied by ``Q``. Layers that read the result
compute ``W (gamma * n + beta)`` from ``Q n``: the weight becomes ``W diag(gamma) Q.T`` and the bias ``b + W beta``. So
a network that normalizes in front of its layers (ViT, GPT) needs no new operator. Where a result of a normalization is
added to the next stream (BERT), one MatMul with the constant ``R diag(gamma) Q.T`` moves it into the basis of that
one. Each stream has its own rotation: with ``R = Q`` that matrix would be nearly diagonal, and its many small numbers
would round to nothing.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from quantry.equalize.flat_basis import rotation
from quantry.equalize.linear_layer import (
    LinearLayer,
    array_of,
    layer_of,
    linear_layer,
    scaled_bias,
    shifted_bias,
    store_array,
    store_input,
)
from quantry.equalize.normalization import Normalization, normalization
from quantry.equalize.residual_stream import (
    ResidualStream,
    Use,
    layers_after,
    residual_stream,
)
from quantry.graph.edit import FreshNames, bypass, constant_of, float_of, string_of
from quantry.graph.float_model import FloatModel
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.weights import new_initializer, rebuilt
from quantry.memo import stage
from quantry.notes import Note, one_per_reason
from quantry.recipe import Rotation
from quantry.runtime.environment import depends_on


@stage(name="rotate", version=4, environment=depends_on("onnx_ir", "numpy"))
def rotate(model: FloatModel, options: Rotation) -> FloatModel:
    """Return a model that computes the same, with residual streams whose channels are all alike.

    Args:
        model: The model; it is not modified.
        options: Which rotation.
    """
    copy = model.model.clone()
    streams, reasons = _find_streams(copy.graph)
    rotated = _Rotated(copy, streams, options.seed)
    rotated.run()
    remove_unused(copy)  # factors that layers have taken
    summary = Note.of(
        "rotated {count} residual streams with {normalizations} normalizations; {products} matrix products inserted",
        count=len(streams),
        normalizations=len(rotated.matrices),
        products=rotated.products,
    )
    blocked = one_per_reason("no rotation in front of {count} normalizations: {reason}", reasons)
    return FloatModel(rebuilt(copy) if streams else model.model, (summary, *blocked))


def _find_streams(graph: ir.Graph) -> tuple[list[ResidualStream], Counter[str]]:
    """Return the streams in the order of the graph, and the number of other normalizations by reason."""
    streams: list[ResidualStream] = []
    reasons: Counter[str] = Counter()
    visited: set[ir.Node] = set()
    for node in graph:
        normalized = normalization(node)
        if normalized is None or node in visited:
            continue
        stream = normalized if isinstance(normalized, str) else residual_stream(normalized)
        if isinstance(stream, str):
            reasons[stream] += 1
        else:
            visited.update(stream.norms)
            streams.append(stream)
    return streams, reasons


class _Rotated:
    """Rotates streams and everything that writes and reads them.

    Attributes:
        matrices: The rotation of what each normalization reads and returns.
        products: Number of matrix products that were inserted.
    """

    def __init__(self, model: ir.Model, streams: list[ResidualStream], seed: int) -> None:
        self._graph = model.graph
        self._names = FreshNames(model)
        self._streams = [(stream, rotation(stream.channels, seed + index)) for index, stream in enumerate(streams)]
        self.matrices = {node: matrix for stream, matrix in self._streams for node in stream.norms}
        self._entries = {use: matrix for stream, matrix in self._streams for use in stream.entries}
        self.products = 0

    def run(self) -> None:
        """Edit the model."""
        for stream, matrix in self._streams:
            self._rotate_stream(stream, matrix)
        # Layers and sums are edited first: what is inserted here changes who reads what.
        for stream, matrix in self._streams:
            for norm in stream.norms.values():
                self._pass_on(norm)
            for use, producer in stream.entries.items():
                if producer not in self.matrices:  # its own stream cannot be rotated, so only this use is
                    self._serve([use], matrix.T, None)

    def _rotate_stream(self, stream: ResidualStream, matrix: np.ndarray) -> None:
        for node, layer in stream.scales.items():
            _take_factors(layer, node)
        for layer in stream.writers:
            _rotate_outputs(layer, matrix)
        for layer in stream.readers:
            _transform_inputs(layer, matrix.T)
        for (node, index), axis in stream.constants.items():
            value = node.inputs[index]
            assert value is not None
            last = np.moveaxis(array_of(value), axis, -1)
            store_input(node, index, np.moveaxis(_rotated_rows(last, matrix), -1, axis), self._names)
        for value in stream.outputs:
            self._serve_output(value, [], matrix, None)

    def _pass_on(self, norm: Normalization) -> None:
        """Make a normalization return ``Q n``, and give all its readers what they read before."""
        gamma, beta, matrix = norm.factors(), norm.offsets(), self.matrices[norm.node]
        result = norm.result
        axis = 0 if result.shape is None else len(result.shape) - 1
        back = matrix * gamma  # diag(gamma) Q.T, transposed: for rows of positions
        served: list[Use] = []
        for use in tuple(result.uses()):  # edits change the readers
            layers = layers_after(use, axis)
            if use in self._entries:
                into = self._entries[use]
                offset = None if beta is None else beta @ into.T
                self._serve([use], back @ into.T, self._taken_by_layer(use, offset))
            elif layers is None or not all(_takes_offset(layer) for layer in layers):
                served.append(use)
            else:
                for layer in layers:
                    self._shift(layer, beta)
                    _transform_inputs(layer, back.T)
        if result.is_graph_output():
            self._serve_output(result, served, back, beta)
        elif served:
            self._serve(served, back, beta)
        self._without_parameters(norm)

    def _taken_by_layer(self, use: Use, offset: np.ndarray | None) -> np.ndarray | None:
        """Return an offset of one operand of a sum, or None if the layer that computes the other one has taken it."""
        node, index = use
        second = node.inputs[1 - index] if node.op_type == "Add" and node.domain == "" else None
        if offset is None or second is None or len(second.uses()) != 1 or second.is_graph_output():
            return offset
        layer = layer_of(second)
        if layer is None or layer.bias is None or array_of(layer.bias).shape[-1:] != offset.shape:
            return offset
        if not _adds_bias_once(layer.node):
            return offset
        store_array(layer.bias, shifted_bias(array_of(layer.bias), offset))
        return None

    def _serve(self, uses: Sequence[Use], matrix: np.ndarray, offset: np.ndarray | None) -> ir.Value:
        """Insert a product with a matrix, and a sum with an offset, in front of some readers of one tensor."""
        value = uses[0][0].inputs[uses[0][1]]
        assert value is not None
        result = self._inserted(value, matrix, offset)
        for node, index in uses:
            node.replace_input_with(index, result)
        return result

    def _serve_output(
        self, value: ir.Value, uses: Sequence[Use], matrix: np.ndarray, offset: np.ndarray | None
    ) -> None:
        """Insert the same in front of an output of the model, which keeps its name, and of other readers."""
        result = self._inserted(value, matrix, offset)
        self._take_over(value, result, uses)

    def _take_over(self, old: ir.Value, new: ir.Value, uses: Sequence[Use]) -> None:
        """Let some readers and the outputs of the model read another tensor, which gets the name of the old one."""
        for node, index in uses:
            node.replace_input_with(index, new)
        for position, output in enumerate(self._graph.outputs):
            if output is old:
                self._graph.outputs[position] = new
        name, old.name = old.name, self._names.value(f"{old.name}_rotated")
        new.name = name

    def _inserted(self, value: ir.Value, matrix: np.ndarray, offset: np.ndarray | None) -> ir.Value:
        """Return ``value @ matrix + offset``."""
        previous = value.producer()
        assert previous is not None
        result = value
        for operator, array in (("MatMul", matrix), ("Add", offset)):
            if array is None:
                continue
            name = f"{value.name}_{'basis' if operator == 'MatMul' else 'offset'}"
            constant = new_initializer(self._names.value(name), array.astype(np.float32))
            self._graph.register_initializer(constant)
            node = ir.node(operator, [result, constant], name=self._names.node(name))
            result = node.outputs[0]
            result.name = self._names.value(f"{name}_output")
            result.type, result.shape = value.type, value.shape
            self._graph.insert_after(previous, node)
            previous = node
        self.products += 1
        return result

    def _shift(self, layer: LinearLayer, beta: np.ndarray | None) -> None:
        """Add what an offset of a layer's inputs adds to its outputs."""
        if beta is None:
            return
        weight = layer.layout.view(np.ascontiguousarray(array_of(layer.weight))).astype(np.float64)
        shift = weight[0].sum(axis=2) @ beta
        # The bias may be the one that another edit has inserted.
        now = linear_layer(layer.node)
        bias = now.bias if isinstance(now, LinearLayer) else layer.bias
        if bias is not None:
            store_array(bias, shifted_bias(array_of(bias), shift))
            return
        name = f"{layer.weight.name}_bias"
        constant = new_initializer(self._names.value(name), shift.astype(np.float32))
        self._graph.register_initializer(constant)
        if layer.node.op_type != "MatMul":
            layer.node.resize_inputs(3)
            layer.node.replace_input_with(2, constant)
            return
        output = layer.node.outputs[0]
        readers = tuple(output.uses())
        add = ir.node("Add", [output, constant], name=self._names.node(name))
        add.outputs[0].type, add.outputs[0].shape = output.type, output.shape
        self._graph.insert_after(layer.node, add)
        self._take_over(output, add.outputs[0], readers)

    def _without_parameters(self, norm: Normalization) -> None:
        for index, fill in ((norm.gamma, 1.0), (norm.beta, 0.0)):
            value = norm.node.inputs[index] if index is not None and index < len(norm.node.inputs) else None
            if index is not None and value is not None:
                store_input(norm.node, index, np.full(array_of(value).shape, fill, np.float32), self._names)


def _takes_offset(layer: LinearLayer) -> bool:
    """Whether the bias of a layer, which a MatMul may get, can take up what a constant adds to its input."""
    node = layer.node
    # A ConvTranspose spreads a constant unevenly, and zeros around an input are no part of the constant.
    return node.op_type != "ConvTranspose" and not _pads(node) and _adds_bias_once(node)


def _pads(convolution: ir.Node) -> bool:
    lengths = convolution.attributes.get("pads")
    padded = lengths is not None and any(lengths.as_ints())
    return padded or string_of(convolution, "auto_pad", "NOTSET").startswith("SAME")


def _adds_bias_once(node: ir.Node) -> bool:
    return node.op_type != "Gemm" or (float_of(node, "alpha", 1.0), float_of(node, "beta", 1.0)) == (1.0, 1.0)


def _take_factors(layer: LinearLayer, product: ir.Node) -> None:
    """Multiply the output channels of a layer with the constant of the product after it, and remove that."""
    factors = next(array for value in product.inputs if (array := constant_of(value)) is not None)
    each = factors.astype(np.float64).reshape(-1)
    weight, bias = layer.weight, layer.bias
    store_array(weight, layer.layout.scaled(array_of(weight), each, np.ones(layer.layout.inputs)))
    if bias is not None:
        store_array(bias, scaled_bias(array_of(bias), each))
    bypass(product, layer.output)


def _rotate_outputs(layer: LinearLayer, matrix: np.ndarray) -> None:
    """Multiply the output channels of a layer with a matrix."""
    weight = np.array(array_of(layer.weight), dtype=np.float64, order="C")
    view = layer.layout.view(weight)[0]  # outputs x inputs x kernel, in the memory of `weight`
    view[...] = np.tensordot(matrix, view, (1, 0))
    store_array(layer.weight, weight.astype(np.float32))
    # The vector of ones does not change, so a bias that is one number for all channels stays.
    if layer.bias is not None and array_of(layer.bias).shape[-1:] == (len(matrix),):
        store_array(layer.bias, _rotated_rows(array_of(layer.bias), matrix))


def _transform_inputs(layer: LinearLayer, matrix: np.ndarray) -> None:
    """Let a layer compute from ``x`` what it computed from ``matrix @ x``."""
    weight = np.array(array_of(layer.weight), dtype=np.float64, order="C")
    view = layer.layout.view(weight)[0]
    view[...] = np.tensordot(view, matrix, (1, 0)).swapaxes(1, 2)
    store_array(layer.weight, weight.astype(np.float32))


_ROWS = 4096
"""Rows of a table that are multiplied at a time: a vocabulary in float64 would need twice the memory of the table."""


def _rotated_rows(array: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return an array whose last axis is multiplied with a matrix, in its own type."""
    rows = array.reshape(-1, array.shape[-1])
    blocks = [rows[start : start + _ROWS].astype(np.float64) @ matrix.T for start in range(0, len(rows), _ROWS)]
    return np.concatenate([block.astype(array.dtype) for block in blocks]).reshape(array.shape)
