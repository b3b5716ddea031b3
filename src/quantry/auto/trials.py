"""Runs the trials of `auto` with the search engine, and counts the time they take."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from quantry.auto.effort import Effort
from quantry.autosearch.context import SearchContext
from quantry.autosearch.cost import CostModel
from quantry.autosearch.evaluator import EvaluatorAdapter
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.data.calibration_data import CalibrationData
from quantry.data.sample_cache import SampleCache
from quantry.data.subset import spread_split
from quantry.evaluate.tasks import Closeness, FloatAgreement
from quantry.graph.load import ModelSource
from quantry.memo import Memo, Store
from quantry.quantization import QuantizationResult, quantize
from quantry.recipe import Recipe
from quantry.targets import computed_for

_BUSY_CORES = 1.5
"""How many cores trials keep busy on average where they have two.

With sixteen cores the same trials take five times the CPU time and no less time by the clock: threads wait for each
other in busy loops. Such waiting must not use up the time of the trials.
"""


class Stopwatch:
    """Measures CPU time, but not more than two cores would take in the same time by the clock."""

    def __init__(self) -> None:
        self._cpu, self._clock = time.process_time(), time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return min(time.process_time() - self._cpu, _BUSY_CORES * (time.perf_counter() - self._clock))


@dataclass(frozen=True)
class TrialResult:
    """A recipe that was tried.

    Attributes:
        label: What was tried.
        recipe: The recipe.
        closeness: How close its model is to the float model on the held-out samples; None if it failed.
        seconds: CPU time.
        error: Why it failed; empty if it did not.
        error_type: Name of the class of that error; empty likewise.
    """

    label: str
    recipe: Recipe
    closeness: Closeness | None
    seconds: float
    error: str = ""
    error_type: str = ""

    def is_same_as(self, other: "TrialResult") -> bool:
        """Return whether both models have the same error on every sample, so that they are the same model."""
        if self.closeness is None or other.closeness is None:
            return False
        return np.array_equal(self.closeness.decibels, other.closeness.decibels)


@dataclass(frozen=True)
class TrialInputs:
    """What all trials share.

    Attributes:
        source: The float model.
        path: Its file.
        data: All calibration samples.
        store: Results of stages.
        evaluation: Data of the comparison with the float model; None if the user gave none.
    """

    source: ModelSource
    path: Path
    data: CalibrationData
    store: Store
    evaluation: CalibrationData | None = None


# With fewer samples than this, half of them are too few to compare on: the halves then swap roles, and every sample is
# compared on once. A trial takes twice the time, which is short with so few samples.
_SWAPPED_BELOW = 16

# From this many samples on, a quarter of them neither calibrates nor chooses anything and tells how good the result is.
_REPORTED_FROM, _REPORTED_SHARE = 64, 4


class _Fold:
    """Trials that are calibrated on some samples and compared on others.

    Args:
        inputs: What all trials share.
        fit: The samples that trials calibrate and tune on.
        held_out: The samples that they are compared on.
        folder: A folder for the models under evaluation.
    """

    def __init__(self, inputs: TrialInputs, fit: CalibrationData, held_out: CalibrationData, folder: Path) -> None:
        self._evaluator = FloatAgreement(inputs.path, SampleCache(held_out), memo=Memo(inputs.store))
        self._directory = OutputDirectory(folder)
        context = SearchContext(
            source=inputs.source,
            float_path=inputs.path,
            data=fit,
            evaluator=EvaluatorAdapter.of(self._evaluator),
            objectives=("accuracy",),
            sample_order=np.arange(self._evaluator.size),
            directory=self._directory,
            store=inputs.store,
        )
        self._runner = TrialRunner(context)
        self._numbers: dict[str, int] = {}
        self._closeness: dict[int, Closeness] = {}
        self._finished: list[Trial] = []
        self._costs = CostModel()

    def run(self, recipe: Recipe) -> tuple[Closeness | None, Trial]:
        """Return how close the model of a recipe is, None if it failed, and the trial."""
        number = len(self._finished)
        trial = self._runner.run(Trial(number, recipe), known=KnownModels(self._numbers))
        closeness = self._measured(trial)
        self._directory.delete_model(number)
        self._finished.append(trial)
        self._costs.learn(trial, None if trial.same_as is None else self._finished[trial.same_as])
        return closeness, trial

    @property
    def elapsed(self) -> float:
        """Seconds of all trials, by the clock."""
        return sum(trial.seconds for trial in self._finished)

    def expected(self, recipe: Recipe) -> float:
        """Return the seconds that a trial of a recipe will take by the clock; what earlier trials did counts nothing.

        Args:
            recipe: The recipe.
        """
        return self._costs.estimate(recipe)

    def _measured(self, trial: Trial) -> Closeness | None:
        if trial.state != "complete":
            return None
        if trial.same_as is not None:
            return self._closeness[trial.same_as]
        measured: Mapping[Path, Closeness] = self._evaluator.measured
        closeness = self._closeness[trial.number] = measured[self._directory.model(trial.number)]
        if trial.content is not None:
            self._numbers[trial.content] = trial.number
        return closeness


class HeldOutTrials:
    """Quantizes with some of the samples and compares with the float model on others.

    Trials run in the search engine: a stage that an earlier trial ran is not repeated, a model that equals an earlier
    one is not evaluated again, and what was measured is stored.

    Args:
        inputs: What all trials share.
        effort: How much work is allowed.
        folder: A folder for the models under evaluation.

    Attributes:
        fit: The samples that trials calibrate and tune on.
        held_out: The samples that they are compared on; the same if there is only one.
        final: The samples that the result is calibrated on: all but the reported ones.
        reported: Samples that neither calibrate nor choose anything; None if there are too few for that.
        is_swapped: Whether every recipe is tried a second time with both swapped, because there are few samples.
        effort: How much work is allowed.
        inputs: What all trials share.
    """

    def __init__(self, inputs: TrialInputs, effort: Effort, folder: Path) -> None:
        self.final = inputs.data
        self.reported: CalibrationData | None = None
        count = _size(inputs.data)
        if count >= _REPORTED_FROM:
            reported = min(effort.held_out, count // _REPORTED_SHARE)
            self.reported, self.final = spread_split(inputs.data, reported, count)
        self.fit, self.held_out = spread_split(self.final, effort.fit, effort.held_out)
        self.effort = effort
        self.inputs = inputs
        self._folder = folder
        self._folds = [_Fold(inputs, self.fit, self.held_out, folder / "first")]
        self.is_swapped = not self.is_single and _size(self.fit) + _size(self.held_out) < _SWAPPED_BELOW
        if self.is_swapped:
            self._folds.append(_Fold(inputs, self.held_out, self.fit, folder / "second"))
        self._watch = Stopwatch()
        self._results: dict[Recipe, TrialResult] = {}

    @property
    def is_single(self) -> bool:
        """Whether there is one sample for everything, so that no trial shows what happens on others."""
        return self.fit is self.held_out

    @property
    def calibrated(self) -> int:
        """Number of samples that a trial is calibrated on."""
        return _size(self.fit)

    @property
    def seconds(self) -> float:
        """CPU time since the beginning, see `Stopwatch`."""
        return self._watch.seconds

    def affords(self, seconds: float, *, is_urgent: bool = False) -> bool:
        """Return whether a trial of this length would end in time.

        Args:
            seconds: CPU time of the trial.
            is_urgent: Whether the model is far from usable yet, which is worth twice the time.
        """
        return self.seconds + seconds <= self.effort.seconds * (2 if is_urgent else 1)

    def expected(self, recipe: Recipe) -> float:
        """Return the CPU time that a trial of a recipe will take; stages that it shares with earlier trials take none.

        Args:
            recipe: The recipe.
        """
        seconds = sum(fold.expected(recipe) for fold in self._folds)
        elapsed = sum(fold.elapsed for fold in self._folds)
        spent = sum(result.seconds for result in self._results.values())
        return seconds * (spent / elapsed if elapsed else 1.0)

    def has_run(self, recipe: Recipe) -> bool:
        """Return whether an equal recipe was tried."""
        return recipe in self._results

    def run(self, label: str, recipe: Recipe) -> TrialResult:
        """Try a recipe; a recipe that was tried before is not run again.

        Args:
            label: What is tried.
            recipe: The recipe.
        """
        earlier = self._results.get(recipe)
        if earlier is not None:
            return replace(earlier, label=label, seconds=0.0)
        result = self._results[recipe] = self._run(label, recipe)
        return result

    def _run(self, label: str, recipe: Recipe) -> TrialResult:
        watch = Stopwatch()
        measured: list[Closeness] = []
        for fold in self._folds:
            closeness, trial = fold.run(recipe)
            if closeness is None:
                error = trial.error or ""
                return TrialResult(label, recipe, None, watch.seconds, error, trial.error_type)
            measured.append(closeness)
        return TrialResult(label, recipe, Closeness.joined(measured), watch.seconds)

    def quantized(self, recipe: Recipe) -> QuantizationResult:
        """Return the model of a trial."""
        return quantize(
            self.inputs.path, self.fit, recipe, evaluation_data=self.held_out, store=self.inputs.store, verify=False
        )

    def measured_on_reported(self, result: QuantizationResult) -> Closeness | None:
        """Return how close a final model is on the samples that chose nothing; None if there are too few samples.

        Args:
            result: The final model.
        """
        if self.reported is None:
            return None
        path = self._folder / "final.onnx"
        result.quantized.save(path)
        evaluator = FloatAgreement(self.inputs.path, SampleCache(self.reported), memo=Memo(self.inputs.store))
        with computed_for(result.recipe.target):
            evaluator(path)
        return evaluator.measured[path]


def _size(data: CalibrationData) -> int:
    return data.size if data.size is not None else sum(1 for _ in data)


@dataclass(frozen=True)
class StepRecord:
    """One line of the report: what was tried and what it changed.

    Attributes:
        label: What was tried.
        compared_with: Label of what it was compared with; empty for the first one.
        decibels: dB of its model on the held-out samples; None if it failed.
        agreement: Agreement of its decisions with the float model's; None if outputs hold no decision.
        gain: dB gained over what it was compared with; None for the first one.
        agreement_gain: The same for the agreement.
        accepted: Whether it was kept.
        seconds: CPU time.
        cause: Title of the finding that suggested it; empty if none did.
        reason: Why it was not kept, if the gain does not say; else empty.
    """

    label: str
    compared_with: str
    decibels: float | None
    agreement: float | None
    gain: float | None
    agreement_gain: float | None
    accepted: bool
    seconds: float
    cause: str = field(default="", compare=False)
    reason: str = ""
