"""The loop of `auto`: tries one change at a time and keeps what a paired test on held-out samples supports."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantry.auto.gain import CHEAP_GAIN, Gain, is_good, is_poor
from quantry.auto.proposals import Proposal, fixes, simpler, tuned_again, tunings, unequalized, untuned
from quantry.auto.training import affordable_trainings, can_train
from quantry.auto.trials import Attempt, Trials, Tried
from quantry.diagnosis import Diagnosis, diagnose
from quantry.errors import QuantryError, SelectionError, StageError
from quantry.evaluate.tasks import Closeness
from quantry.quantization import QuantizationResult, quantize
from quantry.recipe import Recipe
from quantry.runtime.progress import tell
from quantry.targets import Target

_LOG = logging.getLogger(__name__)

# Below this, a model is of no use: it gets twice the time, and pieces of its graph are not weighed.
_COLLAPSED_DB = 6.0

# Above this, an untuned model is still more signal than noise, so that it shows what a change gains; below, only tuned
# trials do.
_TELLING_DB = 3.0

# The diagnosis is repeated after a round of fixes that helped, because other causes come to light.
_ROUNDS = 3


class NothingWorksError(StageError):
    """No recipe could be evaluated."""


@dataclass(frozen=True)
class Outcome:
    """What `auto` found.

    Attributes:
        recipe: The recipe that was chosen.
        closeness: How close its model is to the float model on the held-out samples.
        start: The same of the recipe at the start.
        steps: What was tried, in order.
        diagnosis: The last diagnosis; None if there was no time for one.
        gains: Titles of findings to the dB that the best of their fixes gains alone; only after `Loop.run_fixes`.
        refused: Changes that were not allowed, by the target or by the number of samples, with the reason.
        skipped: Changes that there was no time for.
        kept: What led to the recipe, in order: the labels of the changes.
        uses_all: Whether the final model is calibrated on all samples; otherwise it is that of the best trial, which is
            closer to the float model.
        calibrated, compared: Number of samples that trials were calibrated and compared on.
        is_swapped: Whether the samples of both swapped roles, so that all were compared on.
        seconds: CPU time of all trials.
    """

    recipe: Recipe
    closeness: Closeness
    start: Closeness
    steps: tuple[Tried, ...]
    diagnosis: Diagnosis | None
    gains: Mapping[str, float]
    refused: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    kept: tuple[str, ...]
    uses_all: bool
    calibrated: int
    compared: int
    is_swapped: bool
    seconds: float


class Loop:
    """Improves a recipe step by step.

    The order of trials is fixed, and every decision follows from held-out samples. The result therefore depends on the
    speed of the machine only if the time runs out.

    Args:
        trials: Runs the trials.
        target: The deployment target, which may rule out changes; None allows all.
    """

    def __init__(self, trials: Trials, target: Target | None) -> None:
        self._trials = trials
        self._target = target
        self._steps: list[Tried] = []
        self._refused: dict[str, str] = {}
        self._skipped: dict[str, None] = {}
        self._diagnosis: Diagnosis | None = None
        self._best: Attempt
        self._begun: Attempt
        self._others: list[Attempt] = []
        self._kept: list[str] = []
        self._gains: dict[str, float] = {}
        # Whether the fixes of the first diagnosis were tried.
        self._is_fixed_once = False
        # Whether the start is the recipe of an existing result, which stays as it is if nothing helps.
        self._is_given = False
        # Recipes that were only measured; none was kept yet.
        self._measured: set[Recipe] = set()
        self._start: Closeness
        # How a recipe is changed before a trial: not at all, or its tuning is removed to save time.
        self._lightened: Callable[[Recipe], Recipe] = _unchanged

    def run(self, start: Proposal, others: Iterable[Proposal] = ()) -> Outcome:
        """Improve a recipe.

        Args:
            start: The recipe to improve.
            others: Recipes that the result must not be worse than.

        Raises:
            NothingWorksError: None of these recipes works.
        """
        if self._trials.is_single and start.recipe.tune.steps:
            start = replace(start, label=f"{start.label}, not tuned", recipe=untuned(start.recipe))
        self._begin(start, others)
        self._choose_trials()
        if self._is_plain_better:
            self._consider(unequalized)
        # The diagnosis says what costs most, so that the time is spent on that first.
        self._fix()
        self._is_fixed_once = True
        self._consider(simpler)
        for _ in range(_ROUNDS):
            if not self._fix():
                break
        if self._lightened is untuned:
            self._lightened = _unchanged
            # Where time is left, as with small models: what the tuning cannot make up for shows only with it.
            self._fix()
        self._consider(lambda recipe: tuned_again(recipe, start.recipe.tune))
        self._consider(tunings)
        if self._trials.effort.trained and not self._trials.is_single:
            self._train()
        return self._outcome()

    def _train(self) -> None:
        """Try training without labels, as much of it as fits into the time."""
        if not can_train():
            self._skipped["training, which needs quantry[torch]"] = None
            return
        trials = self._trials
        seconds = trials.effort.seconds / (2 if trials.is_swapped else 1)
        try:
            trainings = affordable_trainings(self._quantized(untuned(self._best.recipe)), seconds, trials.calibrated)
        except QuantryError as error:
            _LOG.warning("auto goes on without training: %s", error)
            return
        self._skipped |= dict.fromkeys(trainings.skipped)
        self._consider(trainings)

    def run_fixes(self, start: Proposal) -> Outcome:
        """Measure every fix that the diagnosis suggests, and combine those that help, largest gain first.

        Args:
            start: The recipe of an existing result.

        Raises:
            NothingWorksError: The recipe does not work.
        """
        self._is_given = True
        self._begin(start, ())
        self._choose_trials()
        self._diagnose()
        if self._diagnosis is not None:
            # Several findings may suggest the same fix.
            found = {proposal.label: proposal for proposal in fixes(start.recipe, self._diagnosis)}
            gains = {label: gain for label, one in found.items() if (gain := self._measure(one)) is not None}
            helpful = sorted((label for label in gains if gains[label] > 0), key=lambda label: -gains[label])
            diagnosis = self._diagnosis
            # Names of nodes may have changed with what was kept, and other causes come to light.
            if self._consider(lambda recipe: _in_order(fixes(recipe, diagnosis), helpful), always=True):
                self._is_fixed_once = True
                self._fix()
                self._diagnosis = diagnosis
        self._lightened = _unchanged
        return self._outcome()

    def _measure(self, proposal: Proposal) -> float | None:
        """Try a fix on the recipe at the start and record its gain; None if it was not tried."""
        base = self._lightened(self._begun.recipe)
        changed = self._lightened(proposal.recipe)
        if changed == base or not self._is_allowed(proposal):
            return None
        before, attempt = self._trials.run(Proposal("", base)), self._trials.run(replace(proposal, recipe=changed))
        if attempt.closeness is None or before.closeness is None:
            self._record(attempt, None, accepted=False, reason=attempt.error)
            return None
        gain = _gain(before, attempt)
        self._record(attempt, gain, accepted=False)
        self._measured.add(changed)
        for title in self._titles(proposal.label):
            self._gains[title] = max(self._gains.get(title, gain.decibels), gain.decibels)
        return gain.decibels

    def _titles(self, label: str) -> Iterator[str]:
        """Yield the titles of the findings that suggest a fix."""
        for finding in () if self._diagnosis is None else self._diagnosis.findings:
            if any(fix.label == label for fix in finding.fixes):
                yield finding.title

    def _begin(self, start: Proposal, others: Iterable[Proposal]) -> None:
        attempts = [self._trials.run(proposal) for proposal in (start, *others)]
        working = [attempt for attempt in attempts if attempt.closeness is not None]
        if not working:
            raise NothingWorksError(f"no recipe could quantize this model; {start.label}: {attempts[0].error}")
        self._best = self._begun = working[0]
        self._record(working[0], None, accepted=True)
        self._others = working[1:]
        for attempt in attempts:
            if attempt is not working[0]:
                self._decide(attempt, self._best)
        assert working[0].closeness is not None
        self._start = working[0].closeness

    def _choose_trials(self) -> None:
        """Leave out the tuning in trials, which takes most of the time, if trials without it tell something.

        A diagnosis without it also tells what a fix would gain; weights that were tuned to rounded inputs are worse
        without the rounding. Time does not decide here: with results in the store another way would be taken, and the
        result would be another one.
        """
        if not self._best.recipe.tune.steps:
            return
        light = self._trials.run(Proposal("no tuning", untuned(self._best.recipe)))
        self._decide(light, self._best)
        # A model that collapses with tuning as well tells nothing that one without it would not tell.
        if light.closeness is not None and (self._is_collapsed or light.closeness.mean_decibels >= _TELLING_DB):
            self._lightened = untuned

    def _fix(self) -> bool:
        """Diagnose the best model and try what the diagnosis suggests; return whether anything helped."""
        self._diagnose()
        found = self._diagnosis
        return found is not None and self._consider(lambda recipe: fixes(recipe, found))

    def _diagnose(self) -> None:
        """Diagnose the best model, if there is time for a trial after that."""
        self._diagnosis = None
        recipe = self._lightened(self._best.recipe)
        # Most fixes change the plan: what is rounded, and to which type.
        if not self._trials.affords(self._trials.expected(_replanned(recipe)), is_urgent=self._is_urgent):
            return
        try:
            # The data are the same in every round, so the rounds do not check them again. Trials measure the rest.
            self._diagnosis = diagnose(self._quantized(recipe), calibration=False, brief=not self._is_given)
        except QuantryError as error:
            _LOG.warning("auto goes on without a diagnosis: %s", error)

    def _quantized(self, recipe: Recipe) -> QuantizationResult:
        """Return the model of a trial."""
        trials = self._trials
        return quantize(
            trials.inputs.path, trials.fit, recipe, evaluation_data=trials.held_out, store=trials.inputs.store
        )

    def _consider(self, propose: Callable[[Recipe], Iterable[Proposal]], *, always: bool = False) -> bool:
        """Try proposals one after the other, each on top of the best so far; return whether any was accepted.

        Where trials leave out the tuning, proposals are tried on top of all that helped without it, and one trial with
        tuning decides about them together: it takes several times as long.

        What costs little must first gain as much as what costs more. If it does not, it comes again at the end: only
        then is it known that nothing which includes it gains more.
        """
        is_light = self._lightened is untuned and bool(self._best.recipe.tune.steps)
        helped: list[Proposal] = []
        accepted = False
        waiting = list(dict.fromkeys(proposal.label for proposal in propose(self._best.recipe)))
        deferred: set[str] = set()
        while waiting:
            label = waiting.pop(0)
            # Proposed again, because the recipe to change may have changed since.
            now = helped[-1].recipe if helped else self._best.recipe
            proposal = next((one for one in propose(now) if one.label == label), None)
            if proposal is None or not (always or proposal.is_free or not self._is_good):
                continue
            if proposal.is_cheap and not proposal.is_free and label not in deferred:
                proposal = self._deferred(proposal)
                deferred.add(label)
                waiting.append(label)
            if not is_light:
                accepted |= self._try(proposal)
            elif self._helps_untuned(now, proposal):
                helped.append(proposal)
        return self._confirm(helped) if helped else accepted

    def _deferred(self, proposal: Proposal) -> Proposal:
        """Return a cheap proposal as one that costs more, and let it be decided about once more."""
        changed = self._lightened(proposal.recipe)
        if self._trials.known(changed) is None:
            self._measured.add(changed)
        return replace(proposal, is_cheap=False)

    @property
    def _is_collapsed(self) -> bool:
        return _collapsed(self._best)

    @property
    def _is_urgent(self) -> bool:
        """Whether a trial may use twice the time.

        The first fixes gain most, and a busy machine would otherwise return a model that it could have fixed.
        """
        closeness = self._best.closeness
        return self._is_collapsed or (not self._is_fixed_once and closeness is not None and is_poor(closeness))

    @property
    def _is_plain_better(self) -> bool:
        """Whether another recipe is better than the one at the start without its tuning: its equalization does harm."""
        light = self._trials.known(untuned(self._begun.recipe))
        if light is None or light.closeness is None:
            return False
        own = light.closeness.mean_decibels
        return any(other.closeness is not None and other.closeness.mean_decibels > own for other in self._others)

    @property
    def _is_good(self) -> bool:
        return self._best.closeness is not None and is_good(self._best.closeness)

    def _try(self, proposal: Proposal) -> bool:
        """Try a change of the best recipe; return whether it was kept."""
        found = self._compared(self._best.recipe, proposal)
        return found is not None and self._decide(found[1], found[0])

    def _helps_untuned(self, recipe: Recipe, proposal: Proposal) -> bool:
        """Try a change of a recipe without tuning; return whether it helps there."""
        found = self._compared(recipe, proposal)
        if found is None:
            return False
        before, attempt = found
        if not self._supports(before, attempt):
            self._decide(attempt, before)
            return False
        self._record(attempt, _gain(before, attempt), accepted=False, reason="helps without tuning")
        return True

    def _compared(self, recipe: Recipe, proposal: Proposal) -> tuple[Attempt, Attempt] | None:
        """Try a recipe before and after a change, both as trials change them; None if nothing is to be learned."""
        changed, base = self._lightened(proposal.recipe), self._lightened(recipe)
        if changed == base or (self._trials.known(changed) is not None and changed not in self._measured):
            return None
        if not self._is_allowed(proposal):
            return None
        before = self._trials.run(Proposal("", base))
        attempt = self._trials.run(replace(proposal, recipe=changed))
        if attempt.error.startswith(SelectionError.__name__):
            return None  # a change kept since the diagnosis renamed its nodes; the next one names them again
        # Equal if there is nothing to change in this model, such as a rotation where nothing is normalized.
        return None if before.is_same_as(attempt) else (before, attempt)

    def _confirm(self, helped: Sequence[Proposal]) -> bool:
        """Try changes that help without tuning with it, all or else the first one; return whether they were kept."""
        if self._decide(self._trials.run(Proposal.together(helped)), self._best):
            return True
        first = helped[0]
        is_late = not self._trials.affords(self._trials.expected(first.recipe), is_urgent=self._is_urgent)
        return len(helped) > 1 and not is_late and self._decide(self._trials.run(first), self._best)

    def _is_allowed(self, proposal: Proposal) -> bool:
        """Return whether the target and the time allow a trial, and remember what they do not."""
        conflicts = () if self._target is None else self._target.conflicts(self._target.adapted(proposal.recipe))
        if conflicts:
            self._refused[proposal.label] = f"the target rules it out: {conflicts[0]}"
        elif self._trials.is_single and len(proposal.recipe.tune.steps) > len(self._best.recipe.tune.steps):
            self._refused[proposal.label] = "one sample cannot show whether tuning on it helps on others"
        elif not self._trials.affords(
            self._trials.expected(self._lightened(proposal.recipe)), is_urgent=self._is_urgent
        ):
            self._skipped[proposal.label] = None
        else:
            return True
        return False

    def _decide(self, attempt: Attempt, before: Attempt) -> bool:
        """Keep an attempt if it is better than the best one, and record it."""
        if attempt.closeness is None:
            self._record(attempt, None, accepted=False, reason=attempt.error)
            return False
        gain = _gain(before, attempt)
        accepted = attempt.recipe != before.recipe and self._supports(before, attempt)
        if accepted and before.recipe != self._best.recipe:
            accepted = self._supports(self._best, attempt)
        self._record(attempt, gain, accepted=accepted)
        if accepted:
            self._keep(attempt)
        elif self._splits(attempt.proposal) and gain.supports(is_cheap=False):
            pieces = f"{attempt.proposal.pieces} more piece{'s' if attempt.proposal.pieces > 1 else ''}"
            self._refused[attempt.proposal.label] = (
                f"{gain.decibels:+.1f} dB do not make up for a graph in {pieces}, because float nodes run elsewhere"
            )
        return accepted

    def _keep(self, attempt: Attempt) -> None:
        self._best = attempt
        # Another recipe to start from replaces everything that was kept before.
        labels = attempt.proposal.parts or (attempt.proposal.label,)
        self._kept = [*([] if attempt in self._others else self._kept), *labels]

    def _supports(self, before: Attempt, after: Attempt) -> bool:
        """Return whether the samples support a change; one piece of a useless model is not worth keeping."""
        if after.closeness is None or before.closeness is None:
            return False
        pieces = 0 if _collapsed(before) else self._splits(after.proposal)
        return _gain(before, after).supports(is_cheap=after.proposal.is_cheap, pieces=pieces)

    def _splits(self, proposal: Proposal) -> int:
        """Return how many more pieces of the graph the target would run because of a proposal."""
        return proposal.pieces if self._target is not None and self._target.float_elsewhere else 0

    def _record(self, attempt: Attempt, gain: Gain | None, *, accepted: bool, reason: str = "") -> None:
        closeness = attempt.closeness
        tried = Tried(
            label=attempt.proposal.label,
            decibels=None if closeness is None else closeness.mean_decibels,
            agreement=None if closeness is None else closeness.mean_agreement,
            gain=None if gain is None else gain.decibels,
            agreement_gain=None if gain is None else gain.agreement,
            accepted=accepted,
            seconds=attempt.seconds,
            cause=attempt.proposal.cause,
            reason=reason,
        )
        self._steps.append(tried)
        shown = "failed" if tried.decibels is None else f"{tried.decibels:.2f} dB"
        line = f"auto: {tried.label}: {shown}{', kept' if accepted else ''}"
        _LOG.info(line)
        tell(f"{line} ({self._trials.seconds:.0f} of {self._trials.effort.seconds:.0f} s of CPU time)")

    def _outcome(self) -> Outcome:
        for other in self._others:
            # A recipe that the test does not prefer may still be better on average, and it is the simpler one.
            if other is not self._best and _gain(other, self._best).is_loss:
                self._keep(other)
        assert self._best.closeness is not None
        uses_all = self._compare_on_all()
        return Outcome(
            recipe=self._best.recipe,
            closeness=self._best.closeness,
            start=self._start,
            steps=tuple(self._steps),
            diagnosis=self._diagnosis,
            gains=self._gains,
            refused=tuple(self._refused.items()),
            skipped=tuple(self._skipped),
            kept=tuple(self._kept),
            uses_all=uses_all,
            calibrated=self._trials.calibrated,
            compared=len(self._best.closeness.decibels),
            is_swapped=self._trials.is_swapped,
            seconds=self._trials.seconds,
        )

    def _compare_on_all(self) -> bool:
        """Calibrate the best recipe on all samples; return whether that model is not worse than the best trial's."""
        if self._trials.fit is self._trials.inputs.data or (self._is_given and self._best is self._begun):
            return True
        proposal = Proposal("calibration on all samples", self._best.recipe)
        attempt = self._trials.run_on_all(proposal)
        if attempt.closeness is None:
            self._record(attempt, None, accepted=False, reason=attempt.error)
            return False
        gain = _gain(self._best, attempt)
        # More samples are better for samples that nobody has seen, so a difference that means nothing does not count.
        is_worse = gain.decibels < -CHEAP_GAIN or gain.surely_disagrees
        self._record(attempt, gain, accepted=not is_worse)
        return not is_worse


def _in_order(proposals: Iterable[Proposal], labels: Sequence[str]) -> list[Proposal]:
    """Return the proposals with these labels, in their order."""
    chosen = [proposal for proposal in proposals if proposal.label in labels]
    return sorted(chosen, key=lambda proposal: labels.index(proposal.label))


def _collapsed(attempt: Attempt) -> bool:
    return attempt.closeness is None or attempt.closeness.mean_decibels < _COLLAPSED_DB


def _unchanged(recipe: Recipe) -> Recipe:
    return recipe


def _replanned(recipe: Recipe) -> Recipe:
    """Return a recipe with another plan, to estimate how long a trial of it takes; it is never run."""
    selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, "another node"))
    return replace(recipe, plan=replace(recipe.plan, selection=selection))


def _gain(before: Attempt, after: Attempt) -> Gain:
    assert before.closeness is not None
    assert after.closeness is not None
    return Gain.between(before.closeness, after.closeness)
