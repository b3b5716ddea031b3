"""Goes through a model layer by layer, with what each layer is fed and what it should give.

Two streams run side by side: the float model, one layer ahead, and the quantized one, which stops before the layer
that is being tuned and goes on with its new constants. Every node runs once in each, whatever the number of layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.execute.open_streams import open_streams
from quantry.execute.quantized_view import Role
from quantry.execute.simulation import simulate
from quantry.numerics.rounding import dequantize_array
from quantry.recipe import LayerTuning
from quantry.runtime.devices import trim_memory
from quantry.runtime.progress import progress
from quantry.tune.layer import Layer
from quantry.tune.task import TuneTask

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
        from quantry.execute.tensor_stream import TensorStream
        from quantry.tune.tensor_inputs import TensorInputs

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
