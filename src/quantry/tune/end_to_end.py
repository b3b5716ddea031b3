"""Judges constants by the outputs of the whole model."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quantry.errors import RecipeError
from quantry.execute.open_streams import AnyStream, open_streams
from quantry.execute.simulation import simulate
from quantry.memo import Blob, checkpoint
from quantry.numerics.rounding import fake_quantize
from quantry.recipe import LayerTuning
from quantry.tune.task import TuneTask

Array = npt.NDArray[np.float32]


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
