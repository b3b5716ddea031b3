"""The result of ``quantry quantize`` as text and as JSON."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import Output
from quantry.notes import Note, NoteKind, grouped_notes
from quantry.recipe.json_result import Count, Interval, JsonResult, Size

if TYPE_CHECKING:
    from quantry.auto import AutoFacts, AutoReport
    from quantry.evaluate import Latency, Quality
    from quantry.memo import Trace
    from quantry.quantization import QuantizationResult

_REASONS = 8

# Stages that are named with their time; shorter ones are not worth a word.
_LONGEST, _SHOWN_SECONDS = 5, 0.05


@dataclass(frozen=True)
class NodeCounts(JsonResult):
    """Nodes of the model.

    Attributes:
        quantized: Number that compute on quantized tensors.
        float: Number of the others.
    """

    quantized: Count
    float: Count


@dataclass(frozen=True)
class TensorCounts(JsonResult):
    """Tensors of the model.

    Attributes:
        activations: Number of quantized activations.
        weights: Number of quantized weights.
        biases: Number of quantized biases.
    """

    activations: Count
    weights: Count
    biases: Count


@dataclass(frozen=True)
class FloatReason(JsonResult):
    """A reason why nodes stayed float.

    Attributes:
        reason: The reason.
        count: Number of nodes.
    """

    reason: str
    count: Size


@dataclass(frozen=True)
class StageRun(JsonResult):
    """A stage that ran.

    Attributes:
        stage: Its name.
        outcome: What happened.
        seconds: Its duration.
    """

    stage: str
    outcome: Literal["computed", "reused"]
    seconds: float


@dataclass(frozen=True)
class MetricEntry(JsonResult):
    """A metric.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; null with one sample.
        higher_is_better: Whether higher is better.
    """

    value: float
    interval: Interval
    higher_is_better: bool


@dataclass(frozen=True)
class EvaluationEntry(JsonResult):
    """The comparison with the float model.

    Attributes:
        compared_on: The data.
        samples: Number of samples.
        metrics: Scores by metric.
        float_bytes: Size of the float model.
        quantized_bytes: Size of the quantized model.
        latency: Times of both models; null if they were not timed.
    """

    compared_on: str
    samples: Size
    metrics: Mapping[str, MetricEntry]
    float_bytes: Size
    quantized_bytes: Size
    latency: "Latency | None"


@dataclass(frozen=True)
class QuantizeResult(JsonResult):
    """A quantized model.

    Attributes:
        model: The float model.
        recipe: Name of the recipe.
        written: The files.
        useless: Why the result is useless; null if it is not.
        nodes: Nodes of the model.
        tensors: Tensors of the model.
        float_because: Why nodes stayed float, most frequent first.
        evaluation: The comparison with the float model; null without it.
        notes: Notes for the user.
        auto: What auto tried and kept; null for other recipes.
        stages: What ran.
    """

    model: Path
    recipe: str
    written: tuple[Path, ...]
    useless: str | None
    nodes: NodeCounts
    tensors: TensorCounts
    float_because: tuple[FloatReason, ...]
    evaluation: EvaluationEntry | None
    notes: tuple[str, ...]
    auto: "AutoFacts | None"
    stages: tuple[StageRun, ...]


@dataclass(frozen=True)
class Summary:
    """What the command tells about a quantized model.

    Attributes:
        result: The result.
        written: The written files.
        evaluate: Whether to compare with the float model.
        extra_notes: Notes that are not in the result.
        compared_on: Name of the data of the comparison.
        useless: Why the model is useless; None if it is not.
        advice: What to do next; empty if nothing was written.
    """

    result: "QuantizationResult"
    written: tuple[Path, ...]
    evaluate: bool
    extra_notes: tuple[Note, ...] = ()
    compared_on: str = "the calibration samples"
    useless: str | None = None
    advice: str = ""

    @property
    def notes(self) -> tuple[Note, ...]:
        """All notes, most important first."""
        alarm = _alarm(self.result) if self.evaluate else ()
        return (*alarm, *self.extra_notes, *self.result.notes)


def useless_because(result: "QuantizationResult") -> str | None:
    """Return why nobody can use a quantized model; None if it is usable."""
    plan = result.plan
    if plan.is_empty:
        most = "".join(f"; most often because: {reason}" for reason in list(plan.float_because)[:1])
        return f"nothing was quantized: {len(plan.all_declined)} nodes stayed float{most}"
    is_random = any(note.kind is NoteKind.NO_DATA for note in result.notes)
    return "the ranges come from random data; give --data" if is_random else None


def show(output: Output, summary: Summary) -> None:
    """Print the summary.

    Args:
        output: Where to print.
        summary: What to print.
    """
    from quantry.auto import AutoResult

    result, console = summary.result, output.console
    plan = result.plan
    console.print(
        f"[bold]{escape(result.recipe.name)}[/]: {len(plan.all_quantized)} nodes quantized, {len(plan.all_declined)} "
        f"kept float; {len(plan.activations)} activations, {len(plan.weights)} weights, {len(plan.biases)} biases"
    )
    for reason, nodes in list(plan.float_because.items())[:_REASONS]:
        name = f": {nodes[0].node!r}" if len(nodes) == 1 else ""
        output.item(f"  {len(nodes)} kept float: ", reason + name)
    if isinstance(result, AutoResult):
        console.print(steps_table(result.auto))
    if summary.evaluate:
        console.print(_evaluation_table(result, summary.compared_on))
    for text in map(str, summary.notes) if output.verbose else grouped_notes(_unseen(summary.notes, output)):
        output.item("  note: ", text)
    waited = f"{result.auto.seconds:.1f} s; " if isinstance(result, AutoResult) else ""
    output.item("  time: ", waited + _times(result.trace, verbose=output.verbose, total=not waited))
    if summary.useless is not None:
        written = "it was written because of --force" if summary.written else "no model was written; --force writes it"
        output.warn(f"the quantized model is useless: {summary.useless}; {written}")
    answer = _quality(summary)
    if answer is not None:
        colour = {"good": "green", "fair": "yellow", "bad": "red"}[answer.level]
        console.print(
            f"[bold {colour}]{escape(answer.words)}[/]: {escape(answer.evidence)}", soft_wrap=True, highlight=False
        )
    for path in summary.written:
        text = str(path) if output.quiet else f"wrote [bold]{escape(str(path))}[/]"
        output.answer.print(text, soft_wrap=True, markup=not output.quiet, highlight=not output.quiet)
    if summary.advice:
        output.item("next: ", summary.advice)


def _quality(summary: Summary) -> "Quality | None":
    """Return how close the model is to the float model; None if it was not measured."""
    from quantry.auto import AutoResult, final_quality
    from quantry.evaluate import quality

    result = summary.result
    if isinstance(result, AutoResult):
        return final_quality(result.auto)
    score = result.evaluation.metrics.get("sqnr") if summary.evaluate and summary.useless is None else None
    return None if score is None else quality(score.value, where=summary.compared_on)


def _times(trace: "Trace", *, verbose: bool, total: bool) -> str:
    """Return how long the stages took: the longest ones, or with ``--verbose`` every run in order."""
    if verbose:
        runs = (
            f"{entry.stage} {entry.seconds:.2f} s" if entry.outcome == "computed" else f"{entry.stage} reused"
            for entry in trace.entries
        )
        return ", ".join(runs)
    seconds: dict[str, float] = {}
    for entry in trace.entries:
        seconds[entry.stage] = seconds.get(entry.stage, 0.0) + entry.seconds
    ordered = sorted(seconds.items(), key=lambda entry: -entry[1])[:_LONGEST]
    longest = [f"{stage} {spent:.1f} s" for stage, spent in ordered if spent >= _SHOWN_SECONDS]
    reused = sum(entry.outcome != "computed" for entry in trace.entries)
    reuse = (f"{reused} of {len(trace.entries)} steps reused",) if reused else ()
    sums = (f"{sum(seconds.values()):.1f} s",) if total else ()
    return "; ".join((*sums, *((", ".join(longest),) if longest else ()), *reuse))


def _unseen(notes: tuple[Note, ...], output: Output) -> tuple[Note, ...]:
    """Return the notes without those that were warnings on the same terminal."""
    on_one_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return tuple(note for note in notes if not (on_one_terminal and note in output.warnings))


def quantize_result(model: Path, summary: Summary) -> QuantizeResult:
    """Return the summary for ``--json``.

    Args:
        model: The float model.
        summary: The summary.
    """
    from quantry.auto import AutoResult, auto_facts

    result = summary.result
    plan = result.plan
    return QuantizeResult.of(
        summary,
        model=model,
        recipe=result.recipe.name,
        nodes=NodeCounts(len(plan.all_quantized), len(plan.all_declined)),
        tensors=TensorCounts(len(plan.activations), len(plan.weights), len(plan.biases)),
        float_because=tuple(FloatReason(reason, len(nodes)) for reason, nodes in plan.float_because.items()),
        evaluation=_evaluation(summary) if summary.evaluate else None,
        notes=tuple(map(str, summary.notes)),
        auto=auto_facts(result.auto) if isinstance(result, AutoResult) else None,
        stages=tuple(map(StageRun.of, result.trace.entries)),
    )


def _evaluation(summary: Summary) -> EvaluationEntry:
    evaluation = summary.result.evaluation
    # One sample does not show the variation between samples.
    unknown = {"interval": None} if evaluation.samples <= 1 else {}
    metrics = {name: MetricEntry.of(score, **unknown) for name, score in evaluation.metrics.items()}
    return EvaluationEntry.of(evaluation, compared_on=summary.compared_on, metrics=metrics)


def steps_table(report: "AutoReport") -> Table:
    """Return what auto tried, what each row is compared with, and last the figures of the written model.

    Args:
        report: What auto found.
    """
    table = Table(title=f"tried, compared on {report.compared} held-out samples")
    for heading in ("", "tried", "dB", "gain", "over", "agreement", ""):
        table.add_column(heading, justify="left" if heading == "tried" else "right")
    rows = {step.label: str(number) for number, step in enumerate(report.steps, 1)}
    for number, step in enumerate(report.steps, 1):
        table.add_row(
            str(number),
            escape(step.label),
            "failed" if step.decibels is None else f"{step.decibels:.2f}",
            "" if step.gain is None else f"{step.gain:+.2f}",
            rows.get(step.compared_with, ""),
            "" if step.agreement is None else f"{step.agreement:.1%}",
            "kept" if step.accepted else "",
        )
    final = report.reported
    if final is not None:
        agreement = "" if final.mean_agreement is None else f"{final.mean_agreement:.1%}"
        table.add_section()
        label = f"the written model, on {len(final.decibels)} samples that chose nothing"
        table.add_row("", label, f"{final.mean_decibels:.2f}", "", "", agreement, "")
    return table


def _alarm(result: "QuantizationResult") -> tuple[Note, ...]:
    """Return advice if the quantized model is too far from the float model to be useful."""
    from quantry.evaluate.levels import FAR, level_of

    score = result.evaluation.metrics.get("sqnr")
    if score is None or level_of(score.value) is not FAR:
        return ()
    note = Note.of(
        "the outputs differ a lot from those of the float model: SQNR is {sqnr:.1f} dB. --report "
        "shows where accuracy is lost; recommended-npu-mixed and recommended-cpu lose less than 8 bits with "
        "power-of-two scales; `quantry search --space accuracy` tries more",
        NoteKind.IMPORTANT,
        sqnr=score.value,
    )
    return (note,)


def _evaluation_table(result: "QuantizationResult", compared_on: str) -> Table:
    from quantry.evaluate import UNITS, bytes_text, score_texts, size_text

    evaluation = result.evaluation
    table = Table(title=f"compared with the float model, on {escape(compared_on)} ({evaluation.samples})")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, score in evaluation.metrics.items():
        arrow = "higher is better" if score.higher_is_better else "lower is better"
        # One sample does not show the variation between samples.
        value, interval = score_texts(score.value, score.interval if evaluation.samples > 1 else None)
        unit = f", {UNITS[name]}" if name in UNITS else ""
        table.add_row(f"{name}{unit} ({arrow})", value, interval or "one sample")
    change = size_text(evaluation.float_bytes, evaluation.quantized_bytes)
    table.add_row("size", bytes_text(evaluation.quantized_bytes), change)
    if evaluation.latency is not None:
        latency = evaluation.latency
        table.add_row("latency", f"{latency.quantized_ms:.2f} ms", f"float {latency.float_ms:.2f} ms")
    return table
