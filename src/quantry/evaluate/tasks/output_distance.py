"""The distance between a model's outputs and the float model's."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import KEPT_BYTES, Feeds, SampleCache
from quantry.errors import ModelError
from quantry.evaluate.arithmetic import EXACT, Arithmetic, arithmetic_in_force
from quantry.evaluate.metrics import Metric, find_metric
from quantry.evaluate.metrics.metric import Pair, pair_outputs
from quantry.evaluate.tasks.task_evaluator import (
    Outputs,
    SampleMean,
    run_samples,
    samples_together,
    threads_of_each,
)
from quantry.graph.load import model_source
from quantry.runtime.sessions import deployment_session, run_session

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True, eq=False)
class OutputComparison(SampleMean):
    """Runs a model and the float model on samples; subclasses score each pair of outputs.

    The float model runs once per sample; its outputs are cached in memory up to 1 GB and recomputed beyond that.

    Attributes:
        reference: Path of the float model.
        samples: The samples.
        threads: Threads inside one operator; None uses the default of the process.
    """

    reference: str | Path
    samples: SampleCache
    threads: int | None = field(default=None, kw_only=True)
    _expected: dict[int, Outputs] = field(default_factory=dict, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, object]:
        """Drop the cached outputs: a spawned process computes its own."""
        return {**self.__dict__, "_expected": {}}

    def prepare(self, float_model: str | Path) -> None:  # noqa: ARG002 - it is `reference`
        """Run the float model on as many samples as can be cached, so that forked processes share the outputs.

        Args:
            float_model: The float model of the search.
        """
        reference = _Reference(self)
        for index, _, outputs in run_samples(
            reference.session, self.samples.read(range(self.size)), reference.together
        ):
            reference.keep(index, outputs)
            if reference.is_full:
                return

    def pairs(
        self, model_path: str | Path, indices: Iterable[int], arithmetic: Arithmetic
    ) -> Iterator[tuple[int, dict[str, Pair | None]]]:
        """Yield the outputs of both models for each sample, by name, with the sample's index.

        Args:
            model_path: The model.
            indices: Indices of the samples; duplicates are run once.
            arithmetic: What computes the model.

        Raises:
            ModelError: The model has other outputs than the float model.
        """
        reference = _Reference(self)
        together = samples_together(self.threads, arithmetic)
        session = arithmetic.open(model_path, threads_of_each(together, self.threads))
        for index, feeds, got in run_samples(session, self.samples.read(indices), together):
            expected = reference.outputs(index, feeds)
            if expected.keys() != got.keys():
                raise ModelError(
                    f"a model must have the float model's outputs {sorted(expected)} to be compared, got "
                    f"{sorted(got)}; in {type(self).__name__} of {self.reference}"
                )
            yield index, {name: pair_outputs(expected[name], got[name]) for name in expected}

    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return the score of each sample.

        Args:
            model_path: The model.
            indices: Indices of the samples.

        Returns:
            One number per index, in the order of the indices.

        Raises:
            ModelError: The model has other outputs than the float model.
        """
        wanted = list(indices)
        if self.is_reference(model_path):
            return np.full(len(wanted), self.reference_score)
        return self.scores(model_path, wanted)

    @property
    @abstractmethod
    def reference_score(self) -> float:
        """The score of the float model itself."""

    @abstractmethod
    def scores(self, model_path: str | Path, wanted: list[int]) -> NDArray[np.float64]:
        """Return the scores of another model than the float model, in the order of the indices."""

    def is_reference(self, model_path: str | Path) -> bool:
        """Return whether a path is the float model: rounding in two sessions of one model is not a distance."""
        return Path(model_path) == Path(self.reference)


@dataclass(frozen=True, eq=False)
class OutputDistance(OutputComparison):
    """A built-in metric between the outputs of the float model and those of another model, averaged over samples.

    Attributes:
        metric: Name of the metric, such as "l2", "l1", "cosine", "psnr", "ssim" or "sqnr".

    Example:
        >>> evaluator = OutputDistance("model.onnx", SampleCache(data), "cosine")  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        0.9987
    """

    metric: str = "l2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", find_metric(self.metric, "OutputDistance.metric").name)

    @property
    def name(self) -> str:
        """Name of the score in tables."""
        return self.metric

    @property
    def direction(self) -> str:
        """Whether higher scores are better ("maximize") or lower ones ("minimize")."""
        return "maximize" if self._metric.higher_is_better else "minimize"

    @property
    def reference_score(self) -> float:
        """The score of the float model itself."""
        return self._metric.best

    def scores(self, model_path: str | Path, wanted: list[int]) -> NDArray[np.float64]:
        """Return the distances of the samples."""
        found = {
            index: self._metric.score_outputs(list(pairs.values()))
            for index, pairs in self.pairs(model_path, wanted, arithmetic_in_force())
        }
        return np.array([found[index] for index in wanted], dtype=np.float64)

    def _identity(self) -> tuple[object, ...]:
        # The source includes the files of external weights.
        return model_source(self.reference), self.samples.data, self.metric

    @property
    def _metric(self) -> Metric:
        return find_metric(self.metric)


class _Reference:
    """The float model's outputs: cached ones, and others from a session that is opened when first needed."""

    def __init__(self, owner: OutputComparison) -> None:
        self._owner = owner
        self._kept_bytes = sum(array.nbytes for outputs in owner._expected.values() for array in outputs.values())

    @cached_property
    def together(self) -> int:
        """How many samples may run in the session at the same time."""
        return samples_together(self._owner.threads, EXACT)

    @cached_property
    def session(self) -> "onnxruntime.InferenceSession":
        """A session of the float model."""
        threads = threads_of_each(self.together, self._owner.threads)
        return deployment_session(Path(self._owner.reference), threads=threads, interleaved=True)

    @property
    def is_full(self) -> bool:
        """Whether the cache is full."""
        return self._kept_bytes > KEPT_BYTES

    def outputs(self, index: int, feeds: Feeds) -> Outputs:
        """Return the float model's outputs of one sample."""
        kept = self._owner._expected.get(index)
        if kept is not None:
            return kept
        outputs = run_session(self.session, feeds)
        self.keep(index, outputs)
        return outputs

    def keep(self, index: int, outputs: Outputs) -> None:
        """Cache the outputs of one sample if there is room."""
        self._kept_bytes += sum(array.nbytes for array in outputs.values())
        if not self.is_full:
            self._owner._expected[index] = outputs
