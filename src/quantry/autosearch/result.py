"""`SearchResult`: what a search found, and how to look at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.samplers import quiet_optuna, study_params
from quantry.autosearch.space import Space
from quantry.autosearch.stop import Stop
from quantry.autosearch.trial import Trial, by_drop
from quantry.autosearch.trial_row import cells, html_table, trial_texts, trial_values
from quantry.errors import MissingExtraError
from quantry.evaluate.paired import difference_interval
from quantry.recipe import brief, to_plain

if TYPE_CHECKING:
    import optuna
    import pandas as pd

_SHOWN_TRIALS = 10


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        best: The best complete trial, within tolerance or not; None if all failed.
        candidates: The trials within tolerance, in the order of their numbers.
        trials: All trials, in the order of their numbers; `trials_dataframe` returns them as a table.
        pareto: The Pareto front of the objectives, best accuracy first.
        reference: The float model's score.
        direction: Whether the score is maximized or minimized.
        tolerance: The largest accepted drop, in the unit of the score; None if every complete trial is accepted.
        stopped_by: Why the search ended.
        notes: What the user should know: what was removed from the space and why, and how far the best is from the
            tolerance.
        output_dir: Where the files are.
        best_model: The best model on disk, or None.
        best_recipe: Its recipe on disk, which ``quantry quantize --recipe`` runs, or None.
        seconds: Duration of the whole search, including the time before an interruption.
        evaluation_share: Samples evaluated, divided by those of evaluating every trial in full; None if the evaluator
            has no per-sample scores.
        model: The float model's file name, or empty.
        metric: Name of the score.
        objectives: What was optimized, accuracy first.
        recorded_at: Seconds since the start at which trials were recorded, by number.
        spaces: The search spaces.
        per_sample: Numbers of trials to their per-sample scores in the order of the samples, for trials that were
            evaluated in full; empty if the evaluator has none.
    """

    best: Trial | None
    candidates: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    pareto: tuple[Trial, ...]
    reference: Score
    direction: Direction
    tolerance: float | None
    stopped_by: Stop
    notes: tuple[str, ...]
    output_dir: Path
    best_model: Path | None
    best_recipe: Path | None
    seconds: float
    evaluation_share: float | None = None
    model: str = ""
    metric: str = "score"
    objectives: tuple[str, ...] = ("accuracy",)
    recorded_at: Mapping[int, float] = field(default_factory=dict, repr=False)
    spaces: tuple[Space, ...] = field(default=(), repr=False, compare=False)
    per_sample: Mapping[int, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        best = "none" if self.best is None else f"trial {self.best.number} with {self.best.score:.6g}"
        return f"SearchResult({len(self.trials)} trials, {len(self.candidates)} candidates, best {best})"

    def _repr_html_(self) -> str:
        """Return the best trials as a table, for notebooks."""
        columns = ("trial", "score", "95 %", "drop", *self.objectives[1:], "seconds", "configuration")
        shown, best = by_drop(self.trials)[:_SHOWN_TRIALS], None if self.best is None else self.best.number
        table = html_table(columns, [(cells(trial_texts(trial), columns), trial.number == best) for trial in shown])
        more = len(self.trials) - _SHOWN_TRIALS
        rest = f"<p>and {more} more: <code>found.trials_dataframe()</code></p>" if more > 0 else ""
        where = "" if self.best_model is None else f"<p>best model: <code>{escape(str(self.best_model))}</code></p>"
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return (
            f"<p>{len(self.trials)} trials in {self.seconds:.0f} s, float model {self.reference.value:.4g}; "
            f"{escape(str(self.stopped_by))}</p>{table}{rest}{where}<ul>{notes}</ul>"
        )

    def trials_dataframe(self) -> "pd.DataFrame":
        """Return the trials as a table: one row per trial, one column per parameter, objective and named score.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError(
                "a table of trials needs pandas, which is not installed; pip install pandas"
            ) from error
        rows = [trial_values(trial) for trial in self.trials]
        return pd.DataFrame(rows).set_index("number") if rows else pd.DataFrame()

    @cached_property
    def study(self) -> "optuna.Study":
        """The trials as an Optuna study in memory, with the same numbers, for Optuna's plots and analyses.

        The study on disk also has what a sampler drew in vain, and numbers that too.
        """
        import optuna

        directions: list[Direction] = [self.direction]
        directions += ["minimize"] * (len(self.objectives) - 1)
        with quiet_optuna():
            study = optuna.create_study(directions=directions, study_name=self.output_dir.name)
            for trial in self.trials:
                study.add_trial(self._optuna_trial(trial))
        return study

    def _optuna_trial(self, trial: Trial) -> "optuna.trial.FrozenTrial":
        import optuna

        states = optuna.trial.TrialState
        values = [trial.objectives.get(name) for name in self.objectives]
        complete = trial.state == "complete" and None not in values
        params, distributions = study_params(self.spaces, trial.space_index, trial.assignment)
        return optuna.trial.create_trial(
            state=states.COMPLETE if complete else states.PRUNED if trial.state == "pruned" else states.FAIL,
            values=[float(value) for value in values if value is not None] if complete else None,
            params=params,
            distributions=distributions,
            user_attrs={
                "recipe": to_plain(trial.recipe),
                "drop": trial.drop,
                "seconds": trial.seconds,
                "accepted": trial.accepted,
                **({"error": trial.error} if trial.error is not None else {}),
                **({"scores": dict(trial.scores)} if trial.scores else {}),
            },
        )

    def compare(self, other: "SearchResult") -> "SearchComparison":
        """Return how the best trial of this search differs from that of another one.

        Args:
            other: Another search, usually of the same model on the same data.
        """
        return SearchComparison(self, other, difference_interval(_best_samples(self), _best_samples(other)))


@dataclass(frozen=True)
class SearchComparison:
    """Two searches side by side.

    Attributes:
        first: One search.
        second: The other one.
        interval: 95 % confidence interval of the difference of their best scores, from the scores of the same samples;
            None if the evaluators have no per-sample scores, or other numbers of samples.
    """

    first: SearchResult
    second: SearchResult
    interval: tuple[float, float] | None = None

    @property
    def difference(self) -> float | None:
        """The best score of the first search minus that of the second; None if one of them found nothing."""
        first, second = self.first.best, self.second.best
        if first is None or second is None or first.score is None or second.score is None:
            return None
        return first.score - second.score

    @property
    def better(self) -> SearchResult | None:
        """The search with the better best score; None if they are equal or one of them found nothing."""
        difference = self.difference
        if difference is None or difference == 0:
            return None
        return self.first if (difference > 0) == (self.first.direction == "maximize") else self.second

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        """What differs between both best recipes: path, value of the first, value of the second."""
        if self.first.best is None or self.second.best is None:
            return ()
        found = self.first.best.recipe.diff(self.second.best.recipe)
        return tuple((one.path, brief(one.ours), brief(one.theirs)) for one in found)

    def __str__(self) -> str:
        difference = self.difference
        if difference is None:
            return "one of the searches found nothing"
        interval = "" if self.interval is None else f" [{self.interval[0]:+.6g}, {self.interval[1]:+.6g}]"
        lines = [f"{self._score(self.first)} and {self._score(self.second)}: {difference:+.6g}{interval}"]
        lines += [f"  {path}: {first} and {second}" for path, first, second in self.changes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the comparison for notebooks."""
        rows = "".join(
            f"<tr><td>{escape(path)}</td><td>{escape(first)}</td><td>{escape(second)}</td></tr>"
            for path, first, second in self.changes
        )
        head = escape(str(self).partition("\n")[0])
        return f"<p>{head}</p><table><tr><th></th><th>first</th><th>second</th></tr>{rows}</table>"

    @staticmethod
    def _score(result: SearchResult) -> str:
        assert result.best is not None
        return f"{result.best.score:.6g} (trial {result.best.number} of {len(result.trials)})"


def _best_samples(result: SearchResult) -> NDArray[np.float64] | None:
    best = result.best
    if best is None:
        return None
    return result.per_sample.get(best.number if best.same_as is None else best.same_as)
