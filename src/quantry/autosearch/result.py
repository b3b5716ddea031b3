"""What a search found."""

from dataclasses import dataclass
from pathlib import Path

from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.table import how_far
from quantry.autosearch.trial import Trial


@dataclass(frozen=True)
class SearchResult:
    """The best model, and everything that was tried.

    Attributes:
        best: The best trial that was evaluated in full, whether within tolerance or not; None when all failed.
        candidates: The trials within tolerance, in the order they were tried.
        trials: Every trial, in order.
        pareto: The trials that no other betters in every objective, best accuracy first.
        reference: The float model's score.
        direction: Which way the score is better.
        tolerance: The largest drop accepted, in the unit of the score; None when everything is.
        stopped_by: Why the search ended.
        notes: What the user should know: what was removed from the space and why, and how far the best is.
        output_dir: Where the files are.
        best_model: The best model on disk, or None.
        best_recipe: Its recipe on disk, which ``quantry quantize --recipe`` runs, or None.
        seconds: Time of the whole search, earlier parts of a resumed one included.
        evaluation_share: Samples evaluated divided by what evaluating every trial in full would take; None where the
            evaluator offers no samples.
    """

    best: Trial | None
    candidates: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    pareto: tuple[Trial, ...]
    reference: Score
    direction: Direction
    tolerance: float | None
    stopped_by: str
    notes: tuple[str, ...]
    output_dir: Path
    best_model: Path | None
    best_recipe: Path | None
    seconds: float
    evaluation_share: float | None = None

    def __repr__(self) -> str:
        best = "none" if self.best is None else f"trial {self.best.number} with {self.best.score:.6g}"
        return f"SearchResult({len(self.trials)} trials, {len(self.candidates)} candidates, best {best})"


def result_of(ledger: Ledger, notes: tuple[str, ...], size: int) -> SearchResult:
    """Return what a search found, for its user to keep.

    Args:
        ledger: The state of the search.
        notes: What is known besides.
        size: How many samples an evaluation has; 0 where they cannot be counted.
    """
    assert ledger.reference is not None
    assert ledger.stopped_by is not None
    directory = ledger.directory
    return SearchResult(
        best=None if ledger.best is None else ledger.trials[ledger.best.number],
        candidates=ledger.candidates,
        trials=tuple(ledger.trials),
        pareto=tuple(ledger.trials[trial.number] for trial in ledger.pareto),
        reference=ledger.reference,
        direction=ledger.direction,
        tolerance=ledger.tolerance,
        stopped_by=ledger.stopped_by,
        notes=(*notes, *how_far(ledger)),
        output_dir=directory.path,
        best_model=None if ledger.best is None else directory.best_model,
        best_recipe=None if ledger.best is None else directory.best_recipe,
        seconds=ledger.seconds,
        evaluation_share=_evaluation_share(ledger, size),
    )


def _evaluation_share(ledger: Ledger, size: int) -> float | None:
    judged = [trial for trial in ledger.trials if trial.state != "failed"]
    if not size or not judged:
        return None
    seen = sum((trial.samples or size) for trial in judged if trial.same_as is None)
    return seen / (size * len(judged))
