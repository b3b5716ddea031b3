"""Whether a search goes on with what is in its folder, or begins anew beside it."""

import math
import warnings
from collections.abc import Sequence

from quantry.autosearch.evaluator import Direction
from quantry.autosearch.executor import Executor
from quantry.autosearch.lease import Lease
from quantry.autosearch.outcome import TrialTask
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.space import Space
from quantry.autosearch.study import StudyFile
from quantry.autosearch.study_storage import close_storage, hidden, open_storage
from quantry.autosearch.trial_runner import REFERENCE
from quantry.errors import RecipeError, StageError

_EQUAL = 1e-6
"""Scores of the same model on other numbers of threads differ by less."""


class Continuation:
    """Opens the study of a search, and sets aside what belongs to another.

    Args:
        directory: The folder; its ``study`` is the name of this search.
        directions: One for each objective.
        spaces: What is searched.
        storage: The database of the study; None is a file in the folder.

    Attributes:
        study: The study to go on with.
        notes: What was set aside and why; the user is warned of it too.
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
        begun = directory.journal.exists() or storage is not None
        names = optuna.get_all_study_names(self._database or open_storage(directory, None)) if begun else []
        # A file holds the studies of its folder alone; a database may hold those of many.
        others = names if storage is None else []
        if directory.study not in names and (others or directory.best_model.exists() or directory.best_recipe.exists()):
            self._set_aside("it had another model, data, evaluator, space, sampler, objectives or seed")
        self.study = self._open()
        self._lease = None if storage is None else Lease(self.study.study)

    def close(self) -> None:
        """Let others have the study."""
        if self._lease is not None:
            self._lease.close()
        if self._database is not None:
            close_storage(self._database)

    def check_reference(self, executor: Executor) -> None:
        """Judge the float model once more where its score is known, and begin anew where the score is another.

        The identity of a search does not cover what an evaluator reads, such as images and labels.

        Raises:
            StageError: The float model cannot be judged.
            RecipeError: The score is another, and the study is in a database, from which nothing is taken away.
        """
        known = self.study.reference
        if known is None:
            return
        executor.submit(TrialTask(REFERENCE, {}))
        outcome = executor.wait()
        if outcome.score is None:
            raise StageError(f"the evaluator must be able to judge the float model; it raised {outcome.error}")
        if math.isclose(outcome.score, known.value, rel_tol=_EQUAL, abs_tol=_EQUAL**2):
            return
        changed = f"the float model's score is {outcome.score:g} now and was {known.value:g} then"
        if self._url is not None:
            raise RecipeError(
                f"a search that goes on must have the same evaluation, got another: {changed}; study "
                f"{self._directory.study} in {hidden(self._url)}. Give the evaluator another fingerprint to begin anew"
            )
        self._set_aside(changed)
        self.study = self._open()

    def _open(self) -> StudyFile:
        storage = self._database or open_storage(self._directory, None)
        return StudyFile(storage, self._directory.study, self._directions, self._spaces)

    def _set_aside(self, reason: str) -> None:
        folder = self._directory.set_aside()
        note = f"an earlier search in {self._directory.path} was moved to {folder}: {reason}; this search begins anew"
        self.notes.append(note)
        warnings.warn(note, UserWarning, stacklevel=2)
