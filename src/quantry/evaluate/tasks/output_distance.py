"""How far a model's outputs are from the float model's."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import KEPT_BYTES, Feeds, SampleBook
from quantry.errors import ModelError
from quantry.evaluate.metrics import Metric, find_metric
from quantry.evaluate.metrics.metric import pair_outputs
from quantry.evaluate.tasks.task_evaluator import Outputs, SampleMean, open_model
from quantry.graph.load import model_source
from quantry.runtime.sessions import deployment_session, run_session

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True, eq=False)
class OutputDistance(SampleMean):
    """A built-in metric between the outputs of the float model and those of another, averaged over samples.

    The float model runs once for each sample; its outputs are kept in memory up to 1 GB and computed again beyond.

    Attributes:
        reference: Path of the float model.
        book: The samples.
        metric: Name of the metric, such as "l2", "l1", "cosine", "psnr", "ssim" or "sqnr".
        threads: Threads inside one operator; None leaves the choice to the process.

    Example:
        >>> evaluator = OutputDistance("model.onnx", SampleBook(data), "cosine")  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        0.9987
    """

    reference: str | Path
    book: SampleBook
    metric: str = "l2"
    threads: int | None = None
    _expected: dict[int, Outputs] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", find_metric(self.metric, "OutputDistance.metric").name)

    def __getstate__(self) -> dict[str, object]:
        """Leave the kept outputs behind: a process that is started anew, not forked, computes its own."""
        return {**self.__dict__, "_expected": {}}

    @property
    def name(self) -> str:
        """What tables call the score."""
        return self.metric

    @property
    def direction(self) -> str:
        """Whether more is better ("maximize") or less ("minimize")."""
        return "maximize" if self._metric.higher_is_better else "minimize"

    @property
    def reference_score(self) -> float:
        """The score of the float model itself."""
        return self._metric.best

    def prepare(self, float_model: str | Path) -> None:  # noqa: ARG002 - it is `reference`
        """Run the float model on as many samples as are kept, so that processes that are forked afterwards share that.

        Args:
            float_model: The float model of the search.
        """
        reference = _Reference(self)
        for index, feeds in self.book.read(range(self.size)):
            reference.outputs(index, feeds)
            if reference.is_full:
                return

    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return the score of each sample.

        Args:
            model_path: The model.
            indices: Which samples.

        Returns:
            One number for each index, in the order of the indices.

        Raises:
            ModelError: The model has other outputs than the float one.
        """
        wanted = list(indices)
        if Path(model_path) == Path(self.reference):
            # The runtime's own rounding between two sessions is no distance.
            return np.full(len(wanted), self.reference_score)
        reference = _Reference(self)
        session = open_model(model_path, self.threads)
        scores = {
            index: self._score(reference.outputs(index, feeds), run_session(session, feeds))
            for index, feeds in self.book.read(wanted)
        }
        return np.array([scores[index] for index in wanted], dtype=np.float64)

    def _identity(self) -> tuple[object, ...]:
        # With the files of its weights, if it has any.
        return model_source(self.reference), self.book.data, self.metric

    @property
    def _metric(self) -> Metric:
        return find_metric(self.metric)

    def _score(self, expected: Outputs, got: Outputs) -> float:
        if expected.keys() != got.keys():
            raise ModelError(
                f"a model must have the float model's outputs {sorted(expected)} to be compared, got {sorted(got)}; "
                f"OutputDistance of {self.reference}"
            )
        return self._metric.score_outputs([pair_outputs(expected[name], got[name]) for name in expected])


class _Reference:
    """The float model's outputs: kept ones, and others from a session that is opened when the first is needed."""

    def __init__(self, owner: OutputDistance) -> None:
        self._owner = owner
        self._kept_bytes = sum(array.nbytes for outputs in owner._expected.values() for array in outputs.values())

    @cached_property
    def _session(self) -> "onnxruntime.InferenceSession":
        return deployment_session(Path(self._owner.reference), threads=self._owner.threads, interleaved=True)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more."""
        return self._kept_bytes > KEPT_BYTES

    def outputs(self, index: int, feeds: Feeds) -> Outputs:
        """Return the float model's outputs of one sample."""
        kept = self._owner._expected.get(index)
        if kept is not None:
            return kept
        outputs = run_session(self._session, feeds)
        self._kept_bytes += sum(array.nbytes for array in outputs.values())
        if not self.is_full:
            self._owner._expected[index] = outputs
        return outputs
