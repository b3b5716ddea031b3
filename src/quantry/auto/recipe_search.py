"""The search of `auto`: tries one change at a time and keeps what held-out samples support."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from quantry.auto.candidates import Candidate, fixes, simplifications, tuned_with, tunings
from quantry.auto.speed import SpeedCheck
from quantry.auto.training import affordable_trainings, can_train
from quantry.auto.trials import HeldOutTrials, StepRecord, TrialResult
from quantry.diagnosis import Diagnosis, diagnose
from quantry.errors import QuantryError, RecipeError, SelectionError, StageError
from quantry.evaluate.levels import CLOSE, DIFFERENT, HALF_BIT, is_as_good, is_below
from quantry.evaluate.paired import PairedCloseness, Trust
from quantry.evaluate.tasks import Closeness
from quantry.recipe import Recipe, TuneOptions
from quantry.runtime.progress import tell
from quantry.targets import Target

_LOG = logging.getLogger(__name__)

# How often the model is diagnosed.
_ROUNDS = 3

# Candidates come in the order of what they are expected to gain, so after this many that gain nothing the others are
# not worth their time.
_GIVE_UP = 3


class NothingWorksError(StageError):
    """No recipe could be evaluated."""


@dataclass(frozen=True)
class AutoReport:
    """What `auto` found.

    Attributes:
        recipe: The recipe that was chosen.
        closeness: How close the model of its trial is to the float model on the held-out samples.
        start: The same of the recipe at the start.
        steps: What was tried, in order.
        diagnosis: The last diagnosis; None if there was no time for one.
        gains: Titles of findings to the dB that the best of their fixes gained.
        refused: Changes that were not allowed, by the target, its speed or the number of samples, with the reason.
        skipped: Changes that there was no time for.
        kept: What led to the recipe, in order: the labels of the changes.
        calibrated, compared: Number of samples that trials were calibrated and compared on.
        is_swapped: Whether the samples of both swapped roles, so that all were compared on.
        slow_because: That int8 is not faster than float on the target, and which nodes cost it; None if it is.
        reported: How close the written model is on samples that neither calibrated nor chose anything; None if there
            were too few samples for that.
        seconds: Time that the user waited.
    """

    recipe: Recipe
    closeness: Closeness
    start: Closeness
    steps: tuple[StepRecord, ...]
    diagnosis: Diagnosis | None
    gains: Mapping[str, float]
    refused: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    kept: tuple[str, ...]
    calibrated: int
    compared: int
    is_swapped: bool
    slow_because: str | None = None
    reported: Closeness | None = None
    seconds: float = 0.0


class RecipeSearch:
    """Improves a recipe step by step.

    The order of trials is fixed, and every decision follows from held-out samples. The result therefore depends on the
    speed of the machine only if the time runs out, and where a target's own speed limits what may stay in float.

    Candidates are screened without tuning, which takes most of a trial's time, and one tuned trial decides at the end.
    Where a model without tuning is more noise than signal, they are screened with it.

    Args:
        trials: Runs the trials.
        target: The deployment target, which may rule out changes; None allows all.
        speed: Measures speed on the target; None if that is not possible here.
    """

    def __init__(self, trials: HeldOutTrials, target: Target | None, speed: SpeedCheck | None = None) -> None:
        self._trials = trials
        self._target = target
        self._speed = speed
        self._trust = Trust()
        self._steps: list[StepRecord] = []
        self._refused: dict[str, str] = {}
        self._skipped: dict[str, None] = {}
        self._diagnosis: Diagnosis | None = None
        self._best: TrialResult
        self._simple: TrialResult | None = None
        self._start: Closeness
        # What was kept, in order, and the tuning that screening leaves out.
        self._kept: list[Candidate] = []
        self._gains: dict[str, float] = {}
        self._tuning = TuneOptions()
        # Whether the fixes of the first diagnosis were tried.
        self._is_fixed_once = False

    def run(self, start: Candidate, simple: Candidate) -> AutoReport:
        """Improve a recipe.

        Args:
            start: The recipe to improve.
            simple: A simple recipe, which the result must not be worse than.

        Raises:
            NothingWorksError: None of these recipes works.
        """
        begun = self._begin(start, simple)
        if self._speed is not None:
            self._keep_slow_nodes_float(self._speed)
        self._fix_in_rounds()
        thorough = self._trials.effort.trained
        if thorough:
            self._consider(simplifications(thorough=True))
        untuned = self._closeness.mean_decibels
        self._tune(begun)
        if self._closeness.mean_decibels >= untuned + HALF_BIT:
            # The rounding of weights hid what else costs accuracy.
            self._fix_in_rounds()
        if thorough:
            self._consider(tunings())
            self._train()
        return self._report()

    def run_fixes(self, start: Candidate) -> AutoReport:
        """Try every fix that the diagnosis of an existing result suggests, and combine those that help.

        Args:
            start: The recipe of the result; it stays as it is if nothing helps.

        Raises:
            NothingWorksError: The recipe does not work.
        """
        self._best = self._trials.run(start.label, start.change(Recipe()))
        if self._best.closeness is None:
            raise NothingWorksError(f"the recipe could not be tried: {self._best.error}")
        self._start = self._best.closeness
        self._record(self._best, None, start, accepted=True)
        diagnosis = self._diagnosed(brief=False)
        if diagnosis is not None:
            self._consider(fixes(diagnosis), is_asked=True)
            self._diagnosis = diagnosis
        return self._report()

    def _begin(self, start: Candidate, simple: Candidate) -> Recipe:
        """Try the recipes to start from; return the recipe that changes are screened on."""
        recipe = start.change(Recipe())
        self._tuning = recipe.tune
        light = replace(recipe, tune=TuneOptions())
        label = f"{start.label}, not tuned" if self._tuning.steps else start.label
        results = [self._trials.run(label, light), self._trials.run(simple.label, simple.change(recipe))]
        working = [result for result in results if result.closeness is not None]
        if not working:
            raise NothingWorksError(f"no recipe could quantize this model; {start.label}: {results[0].error}")
        self._best = working[0]
        self._start, self._simple = self._closeness, results[1]
        for result, candidate in zip(results, (replace(start, label=label), simple), strict=True):
            if result is working[0] or result.closeness is None:
                self._record(result, None, candidate, accepted=result is working[0])
            else:
                self._decide(result, candidate)
        # What to start from is one question; the changes that follow are others.
        self._trust.renew()
        if self._best is not results[0] and results[0].closeness is not None:
            # The simple recipe is better, so one of the rewrites does harm.
            self._consider(simplifications(thorough=False))
        if self._trials.is_single:
            self._tuning = TuneOptions()  # one sample cannot show whether tuning on it helps on others
        if self._tuning.steps and self._closeness.mean_decibels < HALF_BIT:
            # More noise than signal: what a change gains does not show. A model that tuning does not help either
            # tells nothing that one without it would not tell.
            tuned = self._trials.run("tuning", tuned_with(self._best.recipe, self._tuning))
            if tuned.closeness is not None and tuned.closeness.mean_decibels >= DIFFERENT.decibels:
                self._decide(tuned, Candidate.whole("tuning", tuned.recipe))
        return self._best.recipe

    @property
    def _closeness(self) -> Closeness:
        assert self._best.closeness is not None
        return self._best.closeness

    @property
    def _is_urgent(self) -> bool:
        """Whether a trial may use twice the time.

        The first fixes gain most, and a busy machine would otherwise return a model that it could have fixed.
        """
        return self._is_collapsed or (not self._is_fixed_once and is_below(self._closeness, CLOSE))

    @property
    def _is_collapsed(self) -> bool:
        return self._closeness.mean_decibels < DIFFERENT.decibels

    def _keep_slow_nodes_float(self, speed: SpeedCheck) -> None:
        """Leave nodes in float that the target computes slower with integers, if the model is no worse for it."""
        result = self._trials.quantized(self._best.recipe)
        for names, kinds in speed.slow_nodes(result):
            label = f"{len(names)} {kinds} in float, which is faster on {speed.name}"
            candidate = Candidate(label, lambda recipe, names=names: _with_float(recipe, names))  # type: ignore[misc]
            changed = candidate.change(self._best.recipe)
            variant = self._trials.run(label, changed)
            if variant.closeness is None or variant.is_same_as(self._best):
                continue  # onnxruntime fuses a float node between two pairs back into an integer kernel
            is_no_worse = not PairedCloseness(variant.closeness, self._closeness).is_worse
            accepted = is_no_worse and speed.is_faster(self._trials.quantized(changed), result)
            self._record(variant, self._best, candidate, accepted=accepted)
            if accepted:
                self._keep(variant, candidate)
                return

    def _fix_in_rounds(self) -> None:
        """Diagnose and fix, again where that mattered: then other causes come to light."""
        for _ in range(_ROUNDS):
            decibels = self._closeness.mean_decibels
            if not self._fix() or self._closeness.mean_decibels < decibels + HALF_BIT:
                return

    def _fix(self) -> bool:
        """Diagnose the best model and try what the diagnosis suggests; return whether anything helped."""
        self._diagnosis = None
        # Most fixes change the plan: what is rounded, and to which type.
        if self._trials.affords(self._trials.expected(_replanned(self._best.recipe)), is_urgent=self._is_urgent):
            self._diagnosis = self._diagnosed(brief=True)
        # Tuning is decided about at the end.
        tuned = tuple(type(step) for step in self._tuning.steps)
        helped = self._diagnosis is not None and self._consider(fixes(self._diagnosis, without=tuned))
        self._is_fixed_once = True
        return helped

    def _diagnosed(self, *, brief: bool) -> Diagnosis | None:
        if is_as_good(self._closeness) and brief:
            return None
        try:
            # The data are the same in every round, so the rounds do not check them again. Trials measure the rest.
            return diagnose(self._trials.quantized(self._best.recipe), calibration=False, brief=brief)
        except QuantryError as error:
            _LOG.warning("auto goes on without a diagnosis: %s", error)
            return None

    def _consider(self, candidates: Iterable[Candidate], *, is_asked: bool = False) -> bool:
        """Try candidates one after the other, each on top of the best so far; return whether any was kept.

        Args:
            candidates: What to try, most promising first.
            is_asked: Whether the user asked for all of them.
        """
        accepted, in_vain = False, 0
        for candidate in candidates:
            if not is_asked and ((is_as_good(self._closeness) and not candidate.is_free) or in_vain == _GIVE_UP):
                continue
            helped = self._try(candidate)
            accepted |= bool(helped)
            in_vain = 0 if helped else in_vain + (helped is not None)
        return accepted

    def _try(self, candidate: Candidate) -> bool | None:
        """Try a change of the best recipe; return whether it was kept, None if there was nothing to try."""
        try:
            changed = candidate.change(self._best.recipe)
        except RecipeError:
            return None  # such as 16 bits for a type that has none
        if self._trials.has_run(changed) or not self._is_allowed(candidate, changed):
            return None
        result = self._trials.run(candidate.label, changed)
        if result.error_type == SelectionError.__name__:
            return None  # a change kept since the diagnosis renamed its nodes; the next one names them again
        # Equal if there is nothing to change in this model, such as a rotation where nothing is normalized.
        return None if result.is_same_as(self._best) else self._decide(result, candidate)

    def _is_allowed(self, candidate: Candidate, recipe: Recipe) -> bool:
        """Return whether the target and the time allow a trial, and remember what they do not."""
        conflicts = () if self._target is None else self._target.conflicts(self._target.adapted(recipe))
        if conflicts:
            self._refused[candidate.label] = f"the target rules it out: {conflicts[0]}"
        elif self._trials.is_single and len(recipe.tune.steps) > len(self._best.recipe.tune.steps):
            self._refused[candidate.label] = "one sample cannot show whether tuning on it helps on others"
        elif not self._trials.affords(self._trials.expected(recipe), is_urgent=self._is_urgent):
            self._skipped[candidate.label] = None
        else:
            return True
        return False

    def _decide(self, result: TrialResult, candidate: Candidate) -> bool:
        """Keep a trial if it is better than the best one, and record it."""
        if result.closeness is None:
            self._record(result, None, candidate, accepted=False, reason=result.error)
            return False
        pair = PairedCloseness(result.closeness, self._closeness)
        confidence, pieces = self._trust.confidence(), self._pieces(candidate)
        accepted = pair.is_better(is_cheap=candidate.is_cheap, split=HALF_BIT * pieces, confidence=confidence)
        if accepted:
            self._trust.renew()
        reason = self._too_slow(result, candidate) if accepted else ""
        accepted = accepted and not reason
        if pieces and not accepted and not reason and pair.is_better(is_cheap=False, confidence=confidence):
            more = f"{pieces} more piece{'s' if pieces > 1 else ''}"
            reason = f"{pair.decibels:+.1f} dB do not make up for a graph in {more}, because float nodes run elsewhere"
        if reason:
            self._refused[candidate.label] = reason
        self._record(result, self._best, candidate, accepted=accepted, reason=reason)
        for title in candidate.causes:
            self._gains[title] = max(self._gains.get(title, pair.decibels), pair.decibels)
        if accepted:
            self._keep(result, candidate)
        return accepted

    def _pieces(self, candidate: Candidate) -> int:
        """Return how many more pieces of the graph the target would run; one of a useless model costs nothing."""
        runs_elsewhere = self._target is not None and self._target.float_elsewhere
        return candidate.pieces if runs_elsewhere and not self._is_collapsed else 0

    def _too_slow(self, result: TrialResult, candidate: Candidate) -> str:
        """Return why a costly change is not allowed: it makes the model slower than float; empty if it is allowed."""
        if self._speed is None or candidate.is_free:
            return ""
        return self._speed.refusal(self._trials.quantized(result.recipe), self._trials.quantized(self._best.recipe))

    def _keep(self, result: TrialResult, candidate: Candidate) -> None:
        self._best = result
        self._kept.append(candidate)

    def _tune(self, begun: Recipe) -> None:
        """Tune the best recipe, and keep the tuning and what it does not make superfluous.

        Args:
            begun: The recipe that changes were screened on.
        """
        if not self._tuning.steps or self._best.recipe.tune.steps[: len(self._tuning.steps)] == self._tuning.steps:
            return
        screened, kept = self._best, list(self._kept)
        tuning = Candidate("tuning", lambda recipe: tuned_with(recipe, self._tuning))
        if not self._try(tuning) or all(candidate.is_cheap for candidate in kept):
            return
        # Tuning may make up for what was left in float, which then only costs time.
        recipe = begun
        for candidate in kept:
            recipe = candidate.change(recipe) if candidate.is_cheap else recipe
        cheaper = Candidate.whole("tuning without what costs time", tuned_with(recipe, self._tuning))
        if not self._is_allowed(cheaper, cheaper.change(recipe)):
            return
        result = self._trials.run(cheaper.label, cheaper.change(recipe))
        if result.closeness is None or result.is_same_as(screened):
            return
        gain = PairedCloseness(self._closeness, result.closeness)
        accepted = not gain.is_better(is_cheap=False, confidence=self._trust.confidence())
        self._record(result, self._best, cheaper, accepted=accepted)
        if accepted:
            self._kept = [candidate for candidate in kept if candidate.is_cheap]
            self._keep(result, tuning)

    def _train(self) -> None:
        """Try training without labels, as much of it as fits into the time."""
        if self._trials.is_single:
            return
        if not can_train():
            self._skipped["training, which needs quantry[torch]"] = None
            return
        trials = self._trials
        seconds = trials.effort.seconds / (2 if trials.is_swapped else 1)
        untuned = replace(self._best.recipe, tune=TuneOptions())
        try:
            trainings = affordable_trainings(trials.quantized(untuned), seconds, trials.calibrated)
        except QuantryError as error:
            _LOG.warning("auto goes on without training: %s", error)
            return
        self._skipped |= dict.fromkeys(trainings.skipped)
        self._consider(trainings.candidates())

    def _record(
        self,
        result: TrialResult,
        base: TrialResult | None,
        candidate: Candidate,
        *,
        accepted: bool,
        reason: str = "",
    ) -> None:
        closeness = result.closeness
        pair = None
        if closeness is not None and base is not None and base.closeness is not None:
            pair = PairedCloseness(closeness, base.closeness)
        step = StepRecord(
            label=candidate.label,
            compared_with="" if base is None else base.label,
            decibels=None if closeness is None else closeness.mean_decibels,
            agreement=None if closeness is None else closeness.mean_agreement,
            gain=None if pair is None else pair.decibels,
            agreement_gain=None if pair is None else pair.agreement,
            accepted=accepted,
            seconds=result.seconds,
            cause=candidate.causes[0] if candidate.causes else "",
            reason=reason or result.error,
        )
        self._steps.append(step)
        measured = "failed" if step.decibels is None else f"{step.decibels:.2f} dB"
        line = f"auto: {step.label}: {measured}{', kept' if accepted else ''}"
        _LOG.info(line)
        tell(f"{line} ({self._trials.seconds:.0f} s of CPU time)")

    def _report(self) -> AutoReport:
        simple = self._simple
        measured = None if simple is None or simple is self._best else simple.closeness
        # What the test does not prefer may still be better on average, and it is the simpler recipe.
        if simple is not None and measured is not None and PairedCloseness(self._closeness, measured).is_worse:
            self._kept = []
            self._keep(simple, Candidate.whole(simple.label, simple.recipe))
        return AutoReport(
            recipe=self._best.recipe,
            closeness=self._closeness,
            start=self._start,
            steps=tuple(self._steps),
            diagnosis=self._diagnosis,
            gains=self._gains,
            refused=tuple(self._refused.items()),
            skipped=tuple(self._skipped),
            kept=tuple(candidate.label for candidate in self._kept),
            calibrated=self._trials.calibrated,
            compared=len(self._closeness.decibels),
            is_swapped=self._trials.is_swapped,
            slow_because=self._slow_because(),
        )

    def _slow_because(self) -> str | None:
        """Return why the best model is slower than float; times are those without tuning, which moves none."""
        if self._speed is None:
            return None
        untuned = replace(self._best.recipe, tune=TuneOptions())
        recipe = untuned if self._trials.has_run(untuned) else self._best.recipe
        return self._speed.slow_because(self._trials.quantized(recipe))


def _with_float(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
    return replace(recipe, plan=replace(recipe.plan, selection=selection))


def _replanned(recipe: Recipe) -> Recipe:
    """Return a recipe with another plan, to estimate how long a trial of it takes; it is never run."""
    return _with_float(recipe, ("another node",))
