"""A float model that knows nothing makes a search worthless; most often labels or pixels are to blame."""

from typing import TYPE_CHECKING

from rich.console import Console

from quantry.cli.search_job import CLASSIFIER_METRICS, DETECTOR_METRICS

if TYPE_CHECKING:
    from quantry.autosearch.evaluator import Score
    from quantry.cli.search_job import SearchJob


def warn_of_chance(job: "SearchJob", reference: "Score") -> None:
    """Warn on stderr where the float model is no better than chance, or not surely.

    Args:
        job: The search.
        reference: The float model's score.
    """
    chance = _chance(job)
    # With few samples luck gets above chance; a model that was worth training gets far above.
    surely = reference.value if reference.interval is None else min(reference.interval)
    if chance is None or surely > chance or (chance == 0 and reference.value > 0):
        return
    better = "not surely" if reference.value > chance else "no"
    Console(stderr=True).print(
        f"[bold yellow]warning:[/] the float model itself has {job.judged_by} {reference.value:.4f}, {better} better "
        f"than chance ({chance:.4f}), so this search says nothing: labels must be the model's class numbers, and "
        "images must enter as it was trained (--pixel-scale, --mean, --std, --color, --resize)",
        soft_wrap=True,
    )


def _chance(job: "SearchJob") -> float | None:
    """Return the score of a model that knows nothing; None where the metric has none."""
    from quantry.evaluate.tasks import class_count

    metric = job.judged_by
    if metric in CLASSIFIER_METRICS:
        classes = class_count(job.model)
        return min(1.0, CLASSIFIER_METRICS[metric] / classes) if classes else 0.0
    return 0.0 if metric in DETECTOR_METRICS else None
