"""Bias correction, after Nagel et al. 2019 (https://arxiv.org/abs/1906.04721).

Rounding the weights of a layer shifts the mean of its outputs if its inputs have a mean, as they do after a Relu. The
bias compensates the shift::

    b' = b + mean over samples and positions of (W x + b) - (W_rounded x_fed + b)

In front of a Relu the mean is over the positions that it lets pass in one of the models: what it sets to zero in both
is no error. ``x`` is the input of the layer in the float model. Sequentially, ``x_fed`` is its input in the quantized
model, whose earlier layers are already corrected; in one pass it is ``x``, so that each layer compensates its own
weights only.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.execute.activation_stream import ActivationStore, ActivationStream
from quantry.execute.quantized_view import QuantizedView
from quantry.facts.operators import CONVOLUTIONS, LINEAR
from quantry.graph.edit import bounds_of
from quantry.graph.quant_plan import OwnBiasPlan
from quantry.graph.weights import new_initializer
from quantry.notes import Note
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import BiasCorrection, LayerTuning, MinMSE
from quantry.runtime.progress import progress
from quantry.runtime.sessions import deployment_session, provider_of
from quantry.scale.weights import constant_params
from quantry.tune.layer_matrix import layer_matrix
from quantry.tune.layers import Layer, find_layers
from quantry.tune.layerwise import LayerWalker
from quantry.tune.task import Tuned, TuneTask

# Positions of each sample that decide how common a shift is.
_CHECKED_POSITIONS = 128

# At least this share of the positions must have half of the mean shift or more. Otherwise a few outliers cause it, such
# as the first token of a sentence, and a correction would make all other positions worse.
_COMMON = 0.2

Array = npt.NDArray[np.float32]
Means = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Correctable:
    """A layer with a bias.

    Attributes:
        layer: The layer.
        bias: Name of its bias: its own, or that of the Add after a MatMul.
        values: Its values.
    """

    layer: Layer
    bias: str
    values: Array


_Pair = tuple[Array, Array]
"""Input of a layer for a sample, and its output in the float model."""


def run(task: TuneTask, step: BiasCorrection) -> Tuned:
    """Correct the biases of all layers.

    Args:
        task: What is tuned.
        step: Whether layers are corrected sequentially, and on how many samples.
    """
    layers, _ = find_layers(task.model.model, task.plan, LINEAR)
    correctables = [correctable for layer in layers if (correctable := _correctable(layer)) is not None]
    params = dict(task.params.tensors)
    weights: dict[str, Array] = {}
    not_finite = []
    for correctable, pairs, finish in (_sequentially if step.sequential else _in_one_pass)(task, step, correctables):
        shift = _shift(task, correctable, pairs)
        values = (correctable.values.astype(np.float64) + shift.reshape(correctable.values.shape)).astype(np.float32)
        if not np.isfinite(values).all():
            not_finite.append(correctable.layer.name)
            continue
        weights[correctable.bias] = values
        if correctable.bias in params:
            params[correctable.bias] = _requantized(task, correctable.bias, values, params[correctable.bias])
        finish(correctable.bias, values, params)
    message = "bias correction: {count} of {layers} layers corrected {way}; the others have no bias"
    note = Note.of(
        message + ", or a shift that is not finite, such as {layer!r}" if not_finite else message,
        count=len(weights),
        layers=len(layers),
        way="sequentially" if step.sequential else "in one pass",
        layer=not_finite[0] if not_finite else "",
    )
    return Tuned(weights, QuantParams(params), (note,))


_Finish = Callable[[str, Array, dict[str, TensorParams]], None]
_Visit = tuple[_Correctable, Iterator[_Pair], _Finish]


def _sequentially(task: TuneTask, step: BiasCorrection, correctables: list[_Correctable]) -> Iterator[_Visit]:
    walker = LayerWalker(task, [entry.layer for entry in correctables], LayerTuning(samples=step.samples))

    def finish(name: str, values: Array, params: dict[str, TensorParams]) -> None:
        walker.simulation.view = QuantizedView(task.plan, QuantParams(params, ()))
        walker.simulation.set_constant(name, values)

    for visit, correctable in zip(walker.visits("tune: bias correction"), correctables, strict=True):
        yield correctable, map(visit.pair, range(visit.samples)), finish


def _in_one_pass(task: TuneTask, step: BiasCorrection, correctables: list[_Correctable]) -> Iterator[_Visit]:
    data = task.samples(step.samples)
    memory = LayerTuning()
    store = ActivationStore(memory.memory, memory.cache_directory)
    with closing(ActivationStream(task.reference.model, data, provider_of("cpu"), store)) as stream:
        for entry in progress(correctables, "tune: bias correction", len(correctables)):
            layer = entry.layer
            stream.advance(stream.position_of(layer.name) + 1, (layer.source, layer.output))
            pairs = (
                (stream.get(layer.source, sample), stream.get(layer.output, sample)) for sample in range(stream.samples)
            )
            yield entry, pairs, lambda *_: None


def _shift(task: TuneTask, correctable: _Correctable, pairs: Iterator[_Pair]) -> Means:
    """Return by how much the mean of each output channel is below the float model's."""
    layer = correctable.layer
    session = deployment_session(_rounded_alone(task, correctable), interleaved=True)
    axis = 1 if layer.node.op_type in CONVOLUTIONS else -1
    cut = _cut_at(layer.node)
    total, count = np.zeros(correctable.values.size), np.zeros(correctable.values.size)
    checked = []
    for fed, target in pairs:
        output = session.run(None, {layer.source: fed})[0]
        difference = np.moveaxis(target, axis, -1).astype(np.float64) - np.moveaxis(output, axis, -1)
        rows = difference.reshape(-1, len(total))
        if cut is not None:
            # What a Relu cuts off in both models is no error, whatever its size.
            passes = np.maximum(np.moveaxis(target, axis, -1), np.moveaxis(output, axis, -1)).reshape(rows.shape) > cut
            rows = np.where(passes, rows, 0.0)
            count += passes.sum(axis=0)
        else:
            count += len(rows)
        total += rows.sum(axis=0)
        checked.append(rows[:: max(1, len(rows) // _CHECKED_POSITIONS)].astype(np.float32))
    mean = total / np.maximum(count, 1)
    common = (np.concatenate(checked) * np.sign(mean) >= np.abs(mean) / 2).mean(axis=0)
    return np.where(common >= _COMMON, mean, 0.0)


def _cut_at(node: ir.Node) -> float | None:
    """Return where a Relu or Clip cuts off what a layer computes; None if something else reads it as well."""
    output = node.outputs[0]
    readers = [use.node for use in output.uses()]
    all_bounds = {bounds_of(reader) for reader in readers}
    if len(all_bounds) != 1 or output.is_graph_output():
        return None
    bounds = all_bounds.pop()
    return None if bounds is None or math.isinf(bounds[0]) else bounds[0]


def _rounded_alone(task: TuneTask, correctable: _Correctable) -> ir.Model:
    """Return a model of the single layer, with constants as they will be written except for the bias."""
    node = correctable.layer.node
    params = task.params.tensors
    constants = []
    for value in node.inputs[1:]:
        if value is None or value.const_value is None:
            continue
        array = value.const_value.numpy()
        name = value.name or ""
        # The shift is added to the bias before rounding, so it must not contain the rounding error of the old bias.
        is_rounded = name in params and name != correctable.bias
        constants.append(new_initializer(name, fake_quantize(array, params[name]) if is_rounded else array))
    by_name = {value.name: value for value in constants}
    source = node.inputs[0]
    assert source is not None
    data = ir.Value(name=source.name, shape=source.shape, type=source.type)
    output = ir.Value(name=node.outputs[0].name, type=node.outputs[0].type)
    inputs = [data, *(None if value is None else by_name[value.name] for value in node.inputs[1:])]
    alone = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=[output], name=node.name)
    opsets = dict(task.model.model.opset_imports)
    graph = ir.Graph([data], [output], nodes=[alone], initializers=constants, opset_imports=opsets, name="layer")
    return ir.Model(graph, ir_version=task.model.model.ir_version)


def _requantized(task: TuneTask, name: str, values: Array, params: TensorParams) -> TensorParams:
    """Return the parameters of a changed bias: a scale of its own is recomputed from the new values."""
    plan = task.plan.biases.get(name) or task.plan.weights.get(name)
    if isinstance(plan, OwnBiasPlan):
        return constant_params(values, plan.spec, None, MinMSE())
    if name in task.plan.weights:
        return constant_params(values, task.plan.weights[name].spec, params.axis, MinMSE())
    return params


def _correctable(layer: Layer) -> _Correctable | None:
    """Return a layer with its bias, or None if it has no bias with one value per channel."""
    weight = layer.initializer(layer.weight)
    if layer.bias is not None:
        values = layer.initializer(layer.bias)
        return _Correctable(layer, layer.bias, values) if values.size == layer_matrix(layer).channels else None
    readers = tuple(layer.node.outputs[0].uses())
    if layer.node.op_type != "MatMul" or len(readers) != 1 or readers[0].node.op_type != "Add":
        return None
    addend = readers[0].node.inputs[1 - readers[0].idx]
    if addend is None or addend.const_value is None or not addend.is_initializer() or len(addend.uses()) != 1:
        return None
    values = addend.const_value.numpy().astype(np.float32)
    if values.size != weight.shape[1] or values.shape[-1] != values.size:
        return None
    return _Correctable(layer, addend.name or "", values)
