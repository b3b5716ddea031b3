"""Applies an algorithm to the layers of a model one after the other, with the inputs and the target of each layer.

Two streams advance together: the float model, one layer ahead, and the quantized model, which stops before the layer
that is being tuned and continues with its new constants. Every node runs once in each, however many layers there are.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import RecipeError
from quantry.execute.activation_stream import open_streams
from quantry.execute.quantized_view import Role
from quantry.execute.simulation import simulate
from quantry.memo import Blob, checkpoint
from quantry.notes import Note
from quantry.numerics.rounding import dequantize_array, fake_quantize
from quantry.recipe import LayerTuning
from quantry.runtime.devices import trim_memory
from quantry.runtime.progress import progress
from quantry.tune.fallback import layer_or_nothing
from quantry.tune.layers import Layer, LayerConstants, SkippedLayer, find_layers
from quantry.tune.task import Tuned, TuneTask

Array = npt.NDArray[np.float32]


class LayerWalker:
    """Visits layers in the order of the graph.

    Args:
        task: What is tuned.
        layers: Which layers, of ``task.model``, in order.
        options: Samples, devices, how inputs are mixed and where activations are kept.

    Attributes:
        device: torch's name of the GPU that holds activations; None if onnxruntime computes them.

    Example:
        ::

            for visit in LayerWalker(task, layers, options).visits("tune"):
                visit.finish({visit.layer.weight: better(visit)})
    """

    def __init__(self, task: TuneTask, layers: Sequence[Layer], options: LayerTuning) -> None:
        self.task = task
        self.options = options
        self._layers = layers
        data = task.samples(options.samples)
        self.simulation = simulate(task.model.model, task.plan, task.params)
        self._float, self._quantized = open_streams((task.reference.model, self.simulation.model), data, options)
        self.device = self._float.device
        self.samples = self._float.samples

    def visits(self, title: str) -> Iterator["LayerVisit"]:
        """Yield each layer when its input is ready; the caller must finish it before the next one.

        Args:
            title: Title of the progress bar.
        """
        try:
            for number, layer in enumerate(progress(self._layers, title, len(self._layers))):
                self._float.advance(self._float.position_of(layer.name) + 1, (layer.source, layer.output))
                # Up to the layer in the quantized graph, or to the nodes that dequantize its input.
                preludes = self.simulation.preludes.get(layer.name, 0)
                self._quantized.advance(self._quantized.position_of(layer.name) - preludes)
                trim_memory()
                yield LayerVisit(self, layer, number)
                trim_memory()
        finally:
            self._float.close()
            self._quantized.close()

    def target(self, layer: Layer, sample: int) -> Array:
        """Return the output of a layer in the float model."""
        return np.asarray(self._float.get(layer.output, sample), np.float32)

    def fed(self, layer: Layer, sample: int, seed: int) -> Array:
        """Return the input of a layer: quantized values, mixed with float ones if the options ask for it."""
        quantized = self._quantized_input(layer, sample)
        share = self.options.quantized_inputs
        if share >= 1.0:
            return quantized
        exact = np.asarray(self._float.get(layer.source, sample), np.float32)
        drawn = np.random.default_rng((seed, sample)).random(quantized.shape, np.float32)
        return np.where(drawn < share, quantized, exact)

    def _quantized_input(self, layer: Layer, sample: int) -> Array:
        integers = self.simulation.integers.get(layer.source)
        values = self._quantized.get(integers or layer.source, sample)
        for quantizer in self.simulation.view.path(layer.source, layer.name):
            if quantizer.role is Role.CONVERSION:
                values = quantizer.round(values)
            elif quantizer.params is not None and values.dtype.kind in "iu":
                values = dequantize_array(values, quantizer.params)
        return np.asarray(values, np.float32)

    def target_size(self, layer: Layer) -> int:
        """Return the number of elements of a layer's output for the first sample."""
        return self._float.size(layer.output)

    def tensor_pairs(self, layer: Layer, seed: int) -> Iterator[tuple[Sequence[int], Any, Any]]:
        """Yield numbers of samples with the inputs and targets of a layer, on the GPU."""
        from quantry.execute.torch_stream import TorchStream
        from quantry.tune.gpu_form import TensorInputs

        assert isinstance(self._float, TorchStream)
        assert isinstance(self._quantized, TorchStream)
        return TensorInputs(self.simulation, self.options, self._float, self._quantized).pairs(layer, seed)

    def replace(self, constants: Mapping[str, Array]) -> None:
        """Set new values of constants of the current layer."""
        for name, values in constants.items():
            self.simulation.set_constant(name, values)


@dataclass(frozen=True, eq=False)
class LayerVisit:
    """A layer, its inputs and its targets.

    Attributes:
        walker: The walker.
        layer: The layer.
        number: Its index among the layers that are tuned.
    """

    walker: LayerWalker
    layer: Layer
    number: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.walker.samples

    @property
    def seed(self) -> int:
        """Seed of everything that is drawn at random for this layer."""
        return (self.walker.options.seed + self.number) % 2**63

    def pair(self, sample: int) -> tuple[Array, Array]:
        """Return input and target of the layer for a sample."""
        return self.walker.fed(self.layer, sample, self.seed), self.walker.target(self.layer, sample)

    def tensor_pairs(self) -> Iterator[tuple[Sequence[int], Any, Any]]:
        """Yield numbers of samples with inputs and targets, on the GPU."""
        return self.walker.tensor_pairs(self.layer, self.seed)

    def finish(self, constants: Mapping[str, Array]) -> None:
        """Use new constants from now on, for all later layers."""
        self.walker.replace(constants)


class EndToEnd:
    """Accepts new constants only if the outputs of the whole quantized model do not get worse.

    Args:
        task: What is tuned.
        options: Samples, device, and the output to compare.
    """

    def __init__(self, task: TuneTask, options: LayerTuning) -> None:
        self._task = task
        self._options = options
        outputs = [value.name or "" for value in task.reference.model.graph.outputs]
        if options.output_index is not None and not 0 <= options.output_index < len(outputs):
            raise RecipeError(
                f"output_index must be below the number of outputs, {len(outputs)}, got {options.output_index}; in tune"
            )
        self._outputs = outputs if options.output_index is None else [outputs[options.output_index]]
        self._constants: dict[str, Array] = {}
        self._targets: list[list[Array]] | None = None
        self._best: float | None = None

    def accepts(self, number: int, constants: Mapping[str, Array]) -> bool:
        """Return whether the outputs are at most as far from the float model's with new constants; if so, keep them.

        Args:
            number: Index of the layer.
            constants: Its new constants.
        """
        if self._best is None:
            self._best = checkpoint("outputs before", _Distance, lambda: _Distance(self._distance({}))).value
        distance = checkpoint(f"outputs {number}", _Distance, lambda: _Distance(self._distance(constants))).value
        if distance > self._best:
            return False
        self._best = distance
        self._constants |= constants
        return True

    def _distance(self, constants: Mapping[str, Array]) -> float:
        if self._targets is None:
            self._targets = self._run(None)
        simulated = self._run({**self._constants, **constants})
        pairs = [
            (ours, theirs)
            for sample, targets in zip(simulated, self._targets, strict=True)
            for ours, theirs in zip(sample, targets, strict=True)
        ]
        return float(np.mean([np.linalg.norm((ours - theirs).ravel()) for ours, theirs in pairs]))

    def _run(self, constants: Mapping[str, Array] | None) -> list[list[Array]]:
        task, options = self._task, self._options
        model = task.reference.model
        if constants is not None:
            model = simulate(task.model.model, task.plan, task.params, constants).model
        data = task.samples(options.samples)
        (stream,) = open_streams((model,), data, options)
        stream.advance(len(list(model.graph)), self._outputs)
        rounded = {} if constants is None else task.params.tensors

        def value(name: str, sample: int) -> Array:
            array = np.asarray(stream.get(name, sample), np.float32)
            return fake_quantize(array, rounded[name]) if name in rounded else array

        outputs = [[value(name, sample) for name in self._outputs] for sample in range(stream.samples)]
        stream.close()
        return outputs


class _Distance:
    """A number that can be stored as a checkpoint."""

    def __init__(self, value: float) -> None:
        self.value = value

    def to_blob(self) -> Blob:
        return Blob(meta={"value": self.value})

    @classmethod
    def from_blob(cls, blob: Blob) -> "_Distance":
        return cls(float(blob.meta["value"]))


_LOG = logging.getLogger("quantry.tune")


def tune_layers(
    task: TuneTask, options: LayerTuning, title: str, algorithm: Callable[[LayerVisit], LayerConstants]
) -> Tuned:
    """Apply an algorithm to all layers of a model.

    The result of each layer is a checkpoint in the store, so an interrupted or killed run resumes after the last layer
    that was finished.

    Args:
        task: What is tuned.
        options: Which layers, samples and devices.
        title: The algorithm's name.
        algorithm: Returns the new constants of a layer.
    """
    layers, skipped = find_layers(task.model.model, task.plan, options.operators)
    if not layers:
        note = Note.of("{title}: no layer could be tuned", title=title)
        return Tuned({}, task.params, (note, *_skips(title, skipped)))
    walker = LayerWalker(task, layers, options)
    end_to_end = EndToEnd(task, options) if options.selective else None
    weights: dict[str, np.ndarray] = {}
    results: list[LayerConstants] = []
    for visit in walker.visits(f"tune: {title}"):
        attempt = partial(layer_or_nothing, title, visit.layer.name, partial(algorithm, visit))
        result = checkpoint(f"layer {visit.number} {visit.layer.name}", LayerConstants, attempt)
        _LOG.debug("%s: layer %s: error %.4g -> %.4g", title, visit.layer.name, result.before, result.after)
        if end_to_end is not None and not end_to_end.accepts(visit.number, result.values):
            result = LayerConstants({}, result.before, result.before, result.failure)
        visit.finish(result.values)
        weights |= result.values
        results.append(result)
    failed = [SkippedLayer(layer.name, result.failure) for layer, result in zip(layers, results, strict=True)]
    skipped = (*skipped, *(layer for layer in failed if layer.reason))
    tuned = sum(1 for result in results if result.values)
    gain = mean_gain((result.before, result.after) for result in results)
    message = "{title}: {count} of {layers} layers tuned; mean output error fell to 1/{gain:.2f}"
    summary = Note.of(message, title=title, count=tuned, layers=len(layers), gain=gain)
    names = walker.simulation.left_float
    message = "tune: {count} tensors, such as {tensor!r}, were treated as float: their type cannot be simulated"
    unsimulated = (Note.of(message, count=len(names), tensor=names[0]),) if names else ()
    return Tuned(weights, task.params, (summary, *_skips(title, skipped), *unsimulated))


def mean_gain(errors: Iterable[tuple[float, float]]) -> float:
    """Return the geometric mean of the factors by which errors fell, each given as before and after."""
    ratios = [before / after for before, after in errors if after > 0 and before > 0]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0


def _skips(title: str, skipped: Sequence[SkippedLayer]) -> tuple[Note, ...]:
    reasons: dict[str, list[str]] = {}
    for layer in skipped:
        reasons.setdefault(layer.reason, []).append(layer.node)
    message = "{title}: {count} layers skipped, such as {node!r}: {reason}"
    return tuple(
        Note.of(message, title=title, count=len(nodes), node=nodes[0], reason=reason)
        for reason, nodes in reasons.items()
    )
