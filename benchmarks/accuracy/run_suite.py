"""Quantizes a model with every contestant and scores the results on held-out data."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from benchmarks.accuracy.contestants import Contestant
from benchmarks.accuracy.score import interval, paired_interval
from benchmarks.accuracy.suites import Suite
from benchmarks.harness import Failure, Workload, measure
from benchmarks.locations import NotAvailable
from benchmarks.workloads import QuantizedModel, SharedModel

Entry = dict[str, Any]


def run_suite(
    suite: Suite,
    contestants: tuple[Contestant, ...],
    limit: int | None,
    known: Entry,
    keep: Callable[[Entry], None],
    tell: Callable[[str], None],
) -> None:
    """Score the contestants that are not known yet, float first, with confidence intervals.

    Args:
        suite: Model and data.
        contestants: Whom to compare; the first is the reference.
        limit: Number of held-out samples, or all.
        known: What an earlier run kept of this suite; empty for none.
        keep: Gets the suite's whole entry after each contestant.
        tell: Gets a line of text about each contestant.

    Raises:
        NotAvailable: The suite's data are not on this machine.
    """
    source = SharedModel(suite.name)
    calibrated = source.make()["count"]
    scores: dict[str, Entry] = dict(known.get("scores", {}))
    # The reference's own scores stay with it, so that a contestant who comes later is paired with the same ones.
    reference = scores.get(contestants[0].label, {}).get("replicates")
    for contestant in contestants:
        # Published results lack the reference's own scores, without which nobody can be paired with it.
        is_known = "value" in scores.get(contestant.label, {})
        if is_known and (reference is not None or contestant is not contestants[0]):
            continue
        score = _score(suite, contestant, source, limit)
        replicates = score.pop("replicates", None)
        if replicates is not None:
            if contestant is contestants[0]:
                reference = score["replicates"] = replicates
            score["interval"] = interval(replicates)
            if reference is not None:
                score["difference_interval"] = paired_interval(replicates, reference)
        scores[contestant.label] = score
        tell(f"{suite.name} {contestant.label}: {_text(score)}")
        keep(
            {
                "metric": suite.metric,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "calibration_samples": calibrated,
                "scores": scores,
            }
        )


def _score(suite: Suite, contestant: Contestant, source: Workload, limit: int | None) -> Entry:
    made: Workload = source
    if contestant.task is not None:
        name = f"{suite.name}-{contestant.label.replace(' ', '-')}.onnx"
        made = QuantizedModel(name, contestant.task, source, contestant.arguments, contestant.peer)
    try:
        arguments = {"suite": suite.name, "model": made.make()["model"], "limit": limit}
        return dict(measure("benchmarks.tasks.suite:score", arguments).facts)
    except NotAvailable as reason:
        return {"skipped": str(reason)}
    except Failure as reason:
        return {"failure": str(reason)}
    finally:
        made.discard()


def _text(score: Entry) -> str:
    if "value" not in score:
        return f"skipped: {score['skipped']}" if "skipped" in score else f"failed: {score['failure']}"
    low, high = score["interval"]
    return f"{score['value']:.4f} ({low:.4f}..{high:.4f})"
