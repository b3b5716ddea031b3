"""Runs the trials of `auto` with the search engine, and counts the time they take."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quantry.auto.effort import Effort
from quantry.auto.proposals import Proposal
from quantry.autosearch.context import SearchContext
from quantry.autosearch.data_split import spread_split
from quantry.autosearch.evaluator import EvaluatorAdapter
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.data.calibration_data import CalibrationData
from quantry.data.sample_cache import SampleCache
from quantry.evaluate.tasks import Closeness, FloatAgreement
from quantry.graph.load import ModelSource
from quantry.memo import Store
from quantry.recipe import Recipe


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


@dataclass(frozen=True)
class TrialInputs:
    """What all trials share.

    Attributes:
        source: The float model.
        path: Its file.
        data: All calibration samples.
        store: Results of stages.
    """

    source: ModelSource
    path: Path
    data: CalibrationData
    store: Store


class Trials:
    """Quantizes with some of the samples and compares with the float model on others.

    Trials run in the search engine: a stage that an earlier trial ran is not repeated, and a model that equals an
    earlier one is not evaluated again.

    Args:
        inputs: What all trials share.
        effort: How much work is allowed.
        folder: A folder for the models under evaluation.

    Attributes:
        fit: The samples that trials calibrate and tune on.
        held_out: The samples that they are compared on; the same if there is only one.
        effort: How much work is allowed.
        inputs: What all trials share.
    """

    def __init__(self, inputs: TrialInputs, effort: Effort, folder: Path) -> None:
        self.fit, self.held_out = spread_split(inputs.data, effort.fit, effort.held_out)
        self.effort = effort
        self.inputs = inputs
        self._evaluator = FloatAgreement(inputs.path, SampleCache(self.held_out))
        self._directory = OutputDirectory(folder)
        size = self._evaluator.size
        self._runner = TrialRunner(
            SearchContext(
                source=inputs.source,
                float_path=inputs.path,
                data=self.fit,
                evaluator=EvaluatorAdapter.of(self._evaluator),
                objectives=("accuracy",),
                sample_order=np.arange(size),
                directory=self._directory,
                store=inputs.store,
            )
        )
        self._started = time.process_time()
        self._known: dict[Recipe, Attempt] = {}
        self._numbers: dict[str, int] = {}
        self._closeness: dict[int, Closeness] = {}

    @property
    def seconds(self) -> float:
        """CPU time since the beginning."""
        return time.process_time() - self._started

    def affords(self, seconds: float) -> bool:
        """Return whether a trial of this length would end in time."""
        return self.seconds + seconds <= self.effort.seconds

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
        started = time.process_time()
        number = len(self._known)
        trial = self._runner.run(Trial(number, proposal.recipe), known=KnownModels(self._numbers))
        closeness = self._measured(trial)
        self._directory.delete_model(number)
        attempt = Attempt(proposal, closeness, time.process_time() - started, trial.error or "")
        self._known[proposal.recipe] = attempt
        return attempt

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
