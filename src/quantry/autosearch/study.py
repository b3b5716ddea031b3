"""The Optuna study of a search: saves every trial, resumes after an interruption, and tells the sampler scores."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.samplers import from_plain_values, plain_values, quiet_optuna, study_params
from quantry.autosearch.space import Space
from quantry.autosearch.storage import StudyLease, close_storage, open_storage, without_password
from quantry.autosearch.trial import Trial
from quantry.errors import RecipeError
from quantry.recipe import from_plain, to_plain

if TYPE_CHECKING:
    import optuna

# User attributes of the study and of its trials.
_NUMBER, _RECIPE, _RESULT, _SECONDS, _ATTEMPTS = "number", "recipe", "result", "seconds", "attempts"
_SPACE, _ASSIGNMENT, _REFERENCE, _ABANDONED = "space", "assignment", "reference", "abandoned"

# Scores of the same model with other numbers of threads differ by less than this.
_EQUAL = 1e-6


class SearchStudy:
    """Reads and writes the study.

    Optuna numbers everything a sampler draws, including invalid and duplicate configurations; a `Trial` is numbered
    over those that run.

    Args:
        storage: Optuna's storage.
        name: Name of the study; another space, model or evaluator has another name.
        directions: One per objective.
        spaces: The search spaces.
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
        self._optuna_numbers: dict[int, int] = {}
        self._untold: dict[int, Sequence[float] | None] = {}

    @property
    def seconds(self) -> float:
        """Duration of the search before an interruption."""
        return float(self.study.user_attrs.get(_SECONDS, 0.0))

    def set_seconds(self, total: float) -> None:
        """Save the duration of the search so far."""
        self.study.set_user_attr(_SECONDS, total)

    @property
    def reference(self) -> Score | None:
        """The float model's score, if known."""
        known = self.study.user_attrs.get(_REFERENCE)
        if known is None:
            return None
        interval = known["interval"]
        pair = None if interval is None else (interval[0], interval[1])
        return Score(known["value"], pair, named=known.get("named", {}))

    def set_reference(self, score: Score) -> None:
        """Save the float model's score."""
        self.study.set_user_attr(
            _REFERENCE, {"value": score.value, "interval": score.interval, "named": dict(score.named)}
        )

    def restore(self) -> list[Trial]:
        """Return the trials proposed before an interruption, by number; unfinished ones are waiting."""
        trials = [
            self._restored(frozen) for frozen in self.study.get_trials(deepcopy=False) if _NUMBER in frozen.user_attrs
        ]
        return sorted(trials, key=lambda trial: trial.number)

    def add(self, number: int, trial: Trial, *, flat: bool = False) -> Trial:
        """Save a trial that is about to run, and return it with its number.

        Args:
            number: Its number.
            trial: A trial from a list.
            flat: Save it in the form that samplers of continuous spaces learn from.
        """
        import optuna

        numbered = replace(trial, number=number)
        params, distributions = study_params(self.spaces, trial.space_index, trial.assignment, flat=flat)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=params,
                distributions=distributions,
                user_attrs=self._attributes(numbered),
            )
        )
        self._optuna_numbers[number] = self.study.get_trials(deepcopy=False)[-1].number
        return numbered

    def adopt(self, drawn: "optuna.trial.Trial", trial: Trial) -> Trial:
        """Save a trial that a sampler has drawn, and return it."""
        for name, value in self._attributes(trial).items():
            drawn.set_user_attr(name, value)
        self._optuna_numbers[trial.number] = drawn.number
        return trial

    def start(self, trial: Trial) -> int:
        """Count that a trial starts, and return how often it was started before."""
        stored = self._optuna_trial(trial.number)
        before = int(stored.user_attrs.get(_ATTEMPTS, 0))
        stored.set_user_attr(_ATTEMPTS, before + 1)
        return before

    def forget_start(self, trial: Trial) -> None:
        """Undo `start` for a trial that was running when the user stopped the search."""
        stored = self._optuna_trial(trial.number)
        stored.set_user_attr(_ATTEMPTS, max(int(stored.user_attrs.get(_ATTEMPTS, 1)) - 1, 0))

    def save_result(self, trial: Trial) -> None:
        """Save the result of a trial; from here on it is never run again."""
        self._optuna_trial(trial.number).set_user_attr(_RESULT, trial.result())

    def finish(self, trial: Trial, values: Sequence[float] | None) -> None:
        """Hold the values of a recorded trial until `tell_sampler`; None means that it failed."""
        self._untold[trial.number] = values

    def tell_sampler(self, before: int | None = None) -> None:
        """Tell the sampler the values of trials with numbers below ``before``, or of all.

        Holding the others back makes proposals independent of how far the running trials are.
        """
        for number in sorted(self._untold):
            if before is None or number < before:
                self.tell(self._optuna_numbers[number], self._untold.pop(number))

    def tell(self, optuna_number: int, values: Sequence[float] | None) -> None:
        """Tell the sampler the values of an Optuna trial at once; None means that it failed."""
        import optuna

        if self.study.get_trials(deepcopy=False)[optuna_number].state.is_finished():
            return
        with quiet_optuna():
            if values is None:
                self.study.tell(optuna_number, state=optuna.trial.TrialState.FAIL)
            else:
                self.study.tell(optuna_number, list(values))

    def values(self, number: int) -> list[float] | None:
        """Return the values the sampler got for a trial; None if it has none yet."""
        told = self.study.get_trials(deepcopy=False)[self._optuna_numbers[number]].values
        return None if told is None else list(told)

    def abandon_unnumbered(self) -> None:
        """Close Optuna trials that a killed process was drawing."""
        for frozen in self.study.get_trials(deepcopy=False):
            if not frozen.state.is_finished() and _NUMBER not in frozen.user_attrs:
                self._stored(frozen).set_user_attr(_ABANDONED, value=True)
                self.tell(frozen.number, None)

    @property
    def draws(self) -> int:
        """How often a sampler was asked, not counting draws of a killed process."""
        return sum(_ABANDONED not in frozen.user_attrs for frozen in self.study.get_trials(deepcopy=False))

    def _optuna_trial(self, number: int) -> "optuna.trial.Trial":
        return self._stored(self.study.get_trials(deepcopy=False)[self._optuna_numbers[number]])

    def _stored(self, frozen: "optuna.trial.FrozenTrial") -> "optuna.trial.Trial":
        import optuna

        return optuna.trial.Trial(self.study, frozen._trial_id)

    def _restored(self, frozen: "optuna.trial.FrozenTrial") -> Trial:
        attributes = frozen.user_attrs
        index, number = int(attributes[_SPACE]), int(attributes[_NUMBER])
        self._optuna_numbers[number] = frozen.number
        assignment = from_plain_values(self.spaces[index], attributes[_ASSIGNMENT])
        trial = Trial(number, from_plain(attributes[_RECIPE]), assignment, self.spaces[index].name, index)
        result = attributes.get(_RESULT)
        return trial if result is None else trial.with_result(result)

    def _attributes(self, trial: Trial) -> dict[str, Any]:
        return {
            _SPACE: trial.space_index,
            _ASSIGNMENT: plain_values(self.spaces[trial.space_index], trial.assignment),
            _RECIPE: to_plain(trial.recipe),
            # Last: a process that is killed before this attribute is written leaves an unnumbered trial.
            _NUMBER: trial.number,
        }


class StudySession:
    """Opens the study of a search, and moves the files of a different search in the same folder out of the way.

    Args:
        directory: The output directory; its ``study`` is the name of this search's study.
        directions: One per objective.
        spaces: The search spaces.
        storage: The database of the study; None is a file in the folder.

    Attributes:
        study: The study.
        notes: What was moved and why; each was also a warning.
    """

    def __init__(
        self,
        directory: OutputDirectory,
        directions: Sequence[Direction],
        spaces: Sequence[Space],
        storage: str | None = None,
    ) -> None:
        import optuna

        self._directory = directory
        self._url = storage
        self._database = None if storage is None else open_storage(directory, storage)
        self._directions = directions
        self._spaces = spaces
        self.notes: list[str] = []
        exists = directory.journal.exists() or storage is not None
        names = optuna.get_all_study_names(self._database or open_storage(directory, None)) if exists else []
        # A journal holds only studies of its folder; a database may hold those of other searches.
        others = names if storage is None else []
        if directory.study not in names and (others or directory.best_model.exists() or directory.best_recipe.exists()):
            self._set_aside("it had another model, data, evaluator, space, sampler, objectives or seed")
        self.study = self._open()
        self._lease = None if storage is None else StudyLease(self.study.study)

    def close(self) -> None:
        """Release the study."""
        if self._lease is not None:
            self._lease.close()
        if self._database is not None:
            close_storage(self._database)

    def check_reference(self, score: Score) -> None:
        """Start from scratch if the float model's score is not what it was when the study was started.

        The identity of a search does not cover the files an evaluator reads, such as images and labels. If they have
        changed, the float model's score most likely has too.

        Args:
            score: The float model's score now.

        Raises:
            RecipeError: The score has changed, and the study is in a database, from which nothing is removed.
        """
        known = self.study.reference
        # The absolute tolerance is for scores of 0.
        if known is None or math.isclose(score.value, known.value, rel_tol=_EQUAL, abs_tol=_EQUAL**2):
            return
        changed = f"the float model's score is {score.value:g} now and was {known.value:g} then"
        if self._url is not None:
            raise RecipeError(
                f"a resumed search must have the same evaluation, but {changed}; study {self._directory.study} in "
                f"{without_password(self._url)}. Give the evaluator another fingerprint to start from scratch"
            )
        self._set_aside(changed)
        self.study = self._open()

    def _open(self) -> SearchStudy:
        storage = self._database or open_storage(self._directory, None)
        return SearchStudy(storage, self._directory.study, self._directions, self._spaces)

    def _set_aside(self, reason: str) -> None:
        folder = self._directory.set_aside()
        note = (
            f"an earlier search in {self._directory.path} was moved to {folder}: {reason}; "
            "this search starts from scratch"
        )
        self.notes.append(note)
        warnings.warn(note, UserWarning, stacklevel=2)
