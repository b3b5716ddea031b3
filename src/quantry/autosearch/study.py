"""The one Optuna study of a search, and what our trials are called in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantry.autosearch.configurations import Configuration
from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.outcome import Outcome
from quantry.autosearch.quiet_optuna import quiet_optuna
from quantry.autosearch.space import Space
from quantry.autosearch.suggestion import from_plain_values, plain_values, study_params
from quantry.recipe import from_plain, to_plain

if TYPE_CHECKING:
    import optuna

_NUMBER, _RECIPE, _OUTCOME, _SECONDS, _ATTEMPTS = "number", "recipe", "outcome", "seconds", "attempts"
_SPACE, _ASSIGNMENT, _REFERENCE, _ABANDONED = "space", "assignment", "reference", "abandoned"


@dataclass(frozen=True)
class Proposal:
    """A configuration that has a number and a place in the study.

    Attributes:
        number: The trial's number, counted over what is run.
        entry: Its number in the study.
        configuration: What to try.
        outcome: What came of it, when it ran before the search was interrupted.
        attempts: How often it was begun.
    """

    number: int
    entry: int
    configuration: Configuration
    outcome: Outcome | None = None
    attempts: int = 0


class StudyFile:
    """Reads and writes the study.

    Args:
        storage: Where it is kept.
        name: Its name; another space, model or evaluator has another.
        directions: One for each objective.
        spaces: What is searched.
    """

    def __init__(
        self,
        storage: "optuna.storages.BaseStorage",
        name: str,
        directions: Sequence[Direction],
        spaces: Sequence[Space],
    ) -> None:
        import optuna

        self.spaces = spaces
        with quiet_optuna():
            self.study = optuna.create_study(
                storage=storage, study_name=name, directions=list(directions), load_if_exists=True
            )
        self._unheard: dict[int, tuple[int, Sequence[float] | None]] = {}

    @property
    def seconds(self) -> float:
        """Time that earlier parts of this search took."""
        return float(self.study.user_attrs.get(_SECONDS, 0.0))

    def add_seconds(self, total: float) -> None:
        """Remember how long the search has taken so far."""
        self.study.set_user_attr(_SECONDS, total)

    @property
    def reference(self) -> Score | None:
        """The float model's score, when it is known."""
        known = self.study.user_attrs.get(_REFERENCE)
        if known is None:
            return None
        interval = known["interval"]
        return Score(known["value"], None if interval is None else (interval[0], interval[1]))

    def set_reference(self, score: Score) -> None:
        """Remember the float model's score."""
        self.study.set_user_attr(_REFERENCE, {"value": score.value, "interval": score.interval})

    def restore(self) -> list[Proposal]:
        """Return what was proposed before an interruption, by number."""
        proposals = [
            self._proposal(entry) for entry in self.study.get_trials(deepcopy=False) if _NUMBER in entry.user_attrs
        ]
        return sorted(proposals, key=lambda proposal: proposal.number)

    def add(self, number: int, configuration: Configuration, *, flat: bool = False) -> Proposal:
        """Write down a configuration that is about to run.

        Args:
            number: Its number.
            configuration: What it is.
            flat: As a sampler of continuous spaces would write it.
        """
        import optuna

        params, distributions = study_params(self.spaces, configuration.space, configuration.assignment, flat=flat)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=params,
                distributions=distributions,
                user_attrs=self._attributes(number, configuration),
            )
        )
        return Proposal(number, self.study.get_trials(deepcopy=False)[-1].number, configuration)

    def adopt(self, number: int, trial: "optuna.trial.Trial", configuration: Configuration) -> Proposal:
        """Give a number to what a sampler asked for."""
        for name, value in self._attributes(number, configuration).items():
            trial.set_user_attr(name, value)
        return Proposal(number, trial.number, configuration)

    def begin(self, proposal: Proposal) -> int:
        """Count that a trial is begun, and return how often it was before."""
        trial = self._trial(proposal.entry)
        before = int(trial.user_attrs.get(_ATTEMPTS, 0))
        trial.set_user_attr(_ATTEMPTS, before + 1)
        return before

    def forget_attempt(self, proposal: Proposal) -> None:
        """Take back a `begin` that ended because somebody stopped the search."""
        trial = self._trial(proposal.entry)
        trial.set_user_attr(_ATTEMPTS, max(int(trial.user_attrs.get(_ATTEMPTS, 1)) - 1, 0))

    def record(self, proposal: Proposal, outcome: Outcome) -> None:
        """Write down what came of a trial; from here on it is never run again."""
        self._trial(proposal.entry).set_user_attr(_OUTCOME, outcome.to_plain())

    def report(self, proposal: Proposal, values: Sequence[float] | None) -> None:
        """Keep what a trial scored until the sampler may hear of it; None means that it failed."""
        self._unheard[proposal.number] = (proposal.entry, values)

    def hear(self, before: int | None = None) -> None:
        """Let the sampler learn from the trials with numbers below one, or from all.

        Where it draws with some trials still running, it must not matter how far they are.
        """
        for number in sorted(self._unheard):
            if before is None or number < before:
                self.tell(*self._unheard.pop(number))

    def tell(self, entry: int, values: Sequence[float] | None) -> None:
        """Let the sampler learn from an entry at once; None means that it failed."""
        import optuna

        frozen = self.study.get_trials(deepcopy=False)[entry]
        if frozen.state.is_finished():
            return
        with quiet_optuna():
            if values is None:
                self.study.tell(entry, state=optuna.trial.TrialState.FAIL)
            else:
                self.study.tell(entry, list(values))

    def abandon_unnumbered(self) -> None:
        """Close entries that a killed process had begun to ask for and not finished asking."""
        for frozen in self.study.get_trials(deepcopy=False):
            if not frozen.state.is_finished() and _NUMBER not in frozen.user_attrs:
                self._trial(frozen.number).set_user_attr(_ABANDONED, value=True)
                self.tell(frozen.number, None)

    @property
    def draws(self) -> int:
        """How often a sampler was asked, not counting what a killed process did not finish asking."""
        return sum(_ABANDONED not in frozen.user_attrs for frozen in self.study.get_trials(deepcopy=False))

    def _trial(self, entry: int) -> "optuna.trial.Trial":
        import optuna

        return optuna.trial.Trial(self.study, self.study.get_trials(deepcopy=False)[entry]._trial_id)

    def _proposal(self, frozen: "optuna.trial.FrozenTrial") -> Proposal:
        attributes = frozen.user_attrs
        outcome = attributes.get(_OUTCOME)
        space = int(attributes[_SPACE])
        configuration = Configuration(
            space,
            from_plain_values(self.spaces[space], attributes[_ASSIGNMENT]),
            from_plain(attributes[_RECIPE]),
        )
        return Proposal(
            int(attributes[_NUMBER]),
            frozen.number,
            configuration,
            None if outcome is None else Outcome.from_plain(outcome),
            int(attributes.get(_ATTEMPTS, 0)),
        )

    def _attributes(self, number: int, configuration: Configuration) -> dict[str, Any]:
        return {
            _SPACE: configuration.space,
            _ASSIGNMENT: plain_values(self.spaces[configuration.space], configuration.assignment),
            _RECIPE: to_plain(configuration.recipe),
            _NUMBER: number,
        }

    def values(self, entry: int) -> list[float] | None:
        """Return what was told of an entry, or None while nothing was."""
        told = self.study.get_trials(deepcopy=False)[entry].values
        return None if told is None else list(told)
