"""Runs the trials of `auto` with the search engine, and counts the time they take."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from quantry.auto.effort import Effort
from quantry.auto.proposals import Proposal
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
from quantry.recipe import Recipe

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
class Attempt:
    """A recipe that was tried.

    Attributes:
        proposal: What was tried.
        closeness: How close its model is to the float model on the held-out samples; None if it failed.
        seconds: CPU time.
        error: Why it failed; empty if it did not.
    """

    proposal: Proposal
    closeness: Closeness | None
    seconds: float
    error: str = ""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.proposal.recipe

    def is_same_as(self, other: "Attempt") -> bool:
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


class _Half:
    """Trials that are calibrated on some samples and compared on others.

    Args:
        inputs: What all trials share.
        fit: The samples that trials calibrate and tune on.
        held_out: The samples that they are compared on.
        folder: A folder for the models under evaluation.
    """

    def __init__(self, inputs: TrialInputs, fit: CalibrationData, held_out: CalibrationData, folder: Path) -> None:
        self.fit = fit
        self.held_out = held_out
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
        self._final_runner = TrialRunner(replace(context, data=inputs.data))
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._closeness: dict[int, Closeness] = {}
        self._ran: dict[int, Trial] = {}
        self._costs = CostModel()

    def run(self, recipe: Recipe, *, on_all: bool) -> tuple[Closeness | None, str]:
        """Return how close the model of a recipe is, and why it failed.

        Args:
            recipe: The recipe.
            on_all: Whether to calibrate on all samples.
        """
        number, self._count = self._count, self._count + 1
        runner = self._final_runner if on_all else self._runner
        trial = runner.run(Trial(number, recipe), known=KnownModels(self._numbers))
        closeness = self._measured(trial)
        self._directory.delete_model(number)
        if not on_all:
            self._ran[number] = trial
            self._costs.learn(trial, None if trial.same_as is None else self._ran.get(trial.same_as))
        return closeness, trial.error or ""

    @property
    def elapsed(self) -> float:
        """Seconds of all trials, by the clock."""
        return sum(trial.seconds for trial in self._ran.values())

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


class Trials:
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
        is_swapped: Whether every recipe is tried a second time with both swapped, because there are few samples.
        effort: How much work is allowed.
        inputs: What all trials share.
    """

    def __init__(self, inputs: TrialInputs, effort: Effort, folder: Path) -> None:
        self.fit, self.held_out = spread_split(inputs.data, effort.fit, effort.held_out)
        self.effort = effort
        self.inputs = inputs
        compared = _Half(inputs, self.fit, self.held_out, folder / "first")
        self._halves = [compared]
        self.is_swapped = not self.is_single and _size(self.fit) + _size(self.held_out) < _SWAPPED_BELOW
        if self.is_swapped:
            self._halves.append(_Half(inputs, self.held_out, self.fit, folder / "second"))
        self._watch = Stopwatch()
        self._known: dict[Recipe, Attempt] = {}

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
        seconds = sum(half.expected(recipe) for half in self._halves)
        elapsed = sum(half.elapsed for half in self._halves)
        spent = sum(attempt.seconds for attempt in self._known.values())
        return seconds * (spent / elapsed if elapsed else 1.0)

    def known(self, recipe: Recipe) -> Attempt | None:
        """Return the attempt with an equal recipe, if there was one."""
        return self._known.get(recipe)

    def run(self, proposal: Proposal) -> Attempt:
        """Try a recipe; a recipe that was tried before is not run again.

        Args:
            proposal: What to try.
        """
        known = self._known.get(proposal.recipe)
        if known is not None:
            return Attempt(proposal, known.closeness, 0.0, known.error)
        attempt = self._known[proposal.recipe] = self._run(proposal, on_all=False)
        return attempt

    def run_on_all(self, proposal: Proposal) -> Attempt:
        """Calibrate and tune on all samples, also those that trials are compared on.

        Args:
            proposal: What to try.
        """
        return self._run(proposal, on_all=True)

    def _run(self, proposal: Proposal, *, on_all: bool) -> Attempt:
        watch = Stopwatch()
        parts: list[Closeness] = []
        for half in self._halves:
            closeness, error = half.run(proposal.recipe, on_all=on_all)
            if closeness is None:
                return Attempt(proposal, None, watch.seconds, error)
            parts.append(closeness)
        return Attempt(proposal, Closeness.joined(parts), watch.seconds)


def _size(data: CalibrationData) -> int:
    return data.size if data.size is not None else sum(1 for _ in data)


@dataclass(frozen=True)
class Tried:
    """One line of the report: what was tried and what it changed.

    Attributes:
        label: What was tried.
        decibels: dB of its model on the held-out samples; None if it failed.
        agreement: Agreement of its decisions with the float model's; None if outputs hold no decision.
        gain: dB gained compared with the best model before it; None for the first one.
        agreement_gain: The same for the agreement.
        accepted: Whether it was kept.
        seconds: CPU time.
        cause: Title of the finding that suggested it; empty if none did.
        reason: Why it was not kept; empty if it was.
    """

    label: str
    decibels: float | None
    agreement: float | None
    gain: float | None
    agreement_gain: float | None
    accepted: bool
    seconds: float
    cause: str = field(default="", compare=False)
    reason: str = ""
