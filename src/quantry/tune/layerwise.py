"""Goes through a model layer by layer, with what each layer is fed and what it should give.

Two streams run side by side: the float model, one layer ahead, and the quantized one, which stops before the layer
that is being tuned and goes on with its new constants. Every node runs once in each, whatever the number of layers.

Judges constants by the outputs of the whole model.

Goes through the layers of a model with an algorithm for one layer.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import RecipeError
from quantry.execute.activation_stream import AnyStream, open_streams
from quantry.execute.quantized_view import Role
from quantry.execute.simulation import simulate
from quantry.memo import Blob, checkpoint
from quantry.numerics.rounding import dequantize_array, fake_quantize
from quantry.recipe import LayerTuning
from quantry.runtime.devices import trim_memory
from quantry.runtime.progress import progress
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
        device: The GPU that activations are on, as torch calls it; None where onnxruntime computes them.

    Example:
        ::

            for visit in LayerWalker(task, layers, options).visits("tune"):
                visit.finish({visit.layer.weight: better(visit)})
    """

    def __init__(self, task: TuneTask, layers: Sequence[Layer], options: LayerTuning) -> None:
        self.task = task
        self.options = options
        self._layers = layers
        data = task.data if options.samples is None else task.data.take(options.samples)
        self.simulation = simulate(task.model.model, task.plan, task.params)
        self._float, self._quantized = open_streams((task.reference.model, self.simulation.model), data, options)
        self.device = self._float.device
        self.samples = self._float.samples

    def visits(self, title: str) -> Iterator["LayerVisit"]:
        """Yield each layer when its input is ready; the caller finishes it before the next one.

        Args:
            title: What the progress bar is called.
        """
        try:
            for number, layer in enumerate(progress(self._layers, title, len(self._layers))):
                self._float.advance(self._float.position_of(layer.name) + 1, (layer.source, layer.output))
                self._quantized.advance(self._before(layer))
                trim_memory()
                yield LayerVisit(self, layer, number)
                trim_memory()
        finally:
            self._float.close()
            self._quantized.close()

    def target(self, layer: Layer, sample: int) -> Array:
        """Return what a layer gives in the float model."""
        return np.asarray(self._float.get(layer.output, sample), np.float32)

    def fed(self, layer: Layer, sample: int, seed: int) -> Array:
        """Return what a layer is fed: quantized values, mixed with float ones where the options say so."""
        quantized = self._quantized_input(layer, sample)
        part = self.options.quantized_inputs
        if part >= 1.0:
            return quantized
        exact = np.asarray(self._float.get(layer.source, sample), np.float32)
        drawn = np.random.default_rng((seed, sample)).random(quantized.shape, np.float32)
        return np.where(drawn < part, quantized, exact)

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
        """Return how many numbers a layer gives for the first sample."""
        return self._float.size(layer.output)

    def tensor_pairs(self, layer: Layer, seed: int) -> Iterator[tuple[Sequence[int], Any, Any]]:
        """Yield numbers of samples, what a layer is fed for them and what it gives in the float model, on the GPU."""
        from quantry.execute.torch_stream import TensorStream
        from quantry.tune.gpu_form import TensorInputs

        assert isinstance(self._float, TensorStream)
        assert isinstance(self._quantized, TensorStream)
        return TensorInputs(self.simulation, self.options, self._float, self._quantized).pairs(layer, seed)

    def replace(self, constants: Mapping[str, Array]) -> None:
        """Give constants of the layer that is being visited new values."""
        for name, values in constants.items():
            self.simulation.set_constant(name, values)

    def _before(self, layer: Layer) -> int:
        """Return the place of the layer in the quantized graph, or of the nodes that restore its input."""
        return self._quantized.position_of(layer.name) - self.simulation.preludes.get(layer.name, 0)


@dataclass(frozen=True, eq=False)
class LayerVisit:
    """A layer, its inputs and its targets.

    Attributes:
        walker: Whose visit it is.
        layer: The layer.
        number: Its place among the layers that are tuned.
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
        """A number for everything that is drawn at random for this layer."""
        return (self.walker.options.seed + self.number) % 2**63

    def pair(self, sample: int) -> tuple[Array, Array]:
        """Return what the layer is fed for a sample, and what it gives in the float model."""
        return self.walker.fed(self.layer, sample, self.seed), self.walker.target(self.layer, sample)

    def tensor_pairs(self) -> Iterator[tuple[Sequence[int], Any, Any]]:
        """Yield numbers of samples, what the layer is fed for them and what it gives in the float model, on the GPU."""
        return self.walker.tensor_pairs(self.layer, self.seed)

    def finish(self, constants: Mapping[str, Array]) -> None:
        """Let later layers see new constants."""
        self.walker.replace(constants)


class EndToEnd:
    """Compares the outputs of the quantized model with those of the float one, and remembers the best so far.

    Args:
        task: What is tuned.
        options: Samples, device, and which output counts.
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
        """Return whether new constants of a layer make the outputs no worse; if so they stay.

        Args:
            number: Of the layer.
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
        data = task.data if options.samples is None else task.data.take(options.samples)
        (stream,) = open_streams((model,), data, options)
        stream.advance(len(list(model.graph)), self._outputs)
        kept = [
            [self._seen(stream, name, sample, constants) for name in self._outputs] for sample in range(stream.samples)
        ]
        stream.close()
        return kept

    def _seen(self, stream: AnyStream, name: str, sample: int, constants: Mapping[str, Array] | None) -> Array:
        values = np.asarray(stream.get(name, sample), np.float32)
        params = self._task.params.tensors.get(name)
        return values if constants is None or params is None else fake_quantize(values, params)


class _Distance:
    """A number that can be kept."""

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
    """Return what an algorithm makes of all layers of a model.

    Each layer's result is a part of its own in the store, so a run that was interrupted or killed goes on after the
    last layer that was finished.

    Args:
        task: What is tuned.
        options: Which layers, samples and devices.
        title: The algorithm's name.
        algorithm: From a layer with its inputs and targets to its new constants.
    """
    layers, skipped = find_layers(task.model.model, task.plan, options.operators)
    if not layers:
        return Tuned({}, task.params, (f"{title}: no layer could be tuned", *_skips(title, skipped)))
    walker = LayerWalker(task, layers, options)
    judge = EndToEnd(task, options) if options.selective else None
    weights: dict[str, np.ndarray] = {}
    results: list[LayerConstants] = []
    for visit in walker.visits(f"tune: {title}"):
        result = checkpoint(f"layer {visit.number} {visit.layer.name}", LayerConstants, partial(algorithm, visit))
        _LOG.debug("%s: layer %s: error %.4g -> %.4g", title, visit.layer.name, result.before, result.after)
        if judge is not None and not judge.accepts(visit.number, result.values):
            result = LayerConstants({}, result.before, result.before)
        visit.finish(result.values)
        weights |= result.values
        results.append(result)
    notes = (_summary(title, layers, results), *_skips(title, skipped), *_unsimulated(walker))
    return Tuned(weights, task.params, notes)


def _summary(title: str, layers: Sequence[Layer], results: Sequence[LayerConstants]) -> str:
    changed = sum(1 for result in results if result.values)
    ratios = [result.before / result.after for result in results if result.after > 0 and result.before > 0]
    gain = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
    return f"{title}: {changed} of {len(layers)} layers tuned; mean output error fell to 1/{gain:.2f}"


def _skips(title: str, skipped: Sequence[SkippedLayer]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for layer in skipped:
        reasons.setdefault(layer.reason, []).append(layer.node)
    return tuple(
        f"{title}: {len(nodes)} layers left alone, such as {nodes[0]!r}: {reason}" for reason, nodes in reasons.items()
    )


def _unsimulated(walker: LayerWalker) -> tuple[str, ...]:
    left = walker.simulation.left_float
    if not left:
        return ()
    return (f"tune: {len(left)} tensors, such as {left[0]!r}, were taken as float: their type is not simulated here",)
