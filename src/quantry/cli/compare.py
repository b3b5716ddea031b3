"""Two models of any tool on the same data: ``quantry compare``, and ``quantry diagnose`` with two models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from quantry.cli.console import check_output
from quantry.cli.frame import current_output
from quantry.cli.image_arguments import ImageArguments
from quantry.cli.model_data import samples_for
from quantry.cli.option_parameters import OptionGroup
from quantry.recipe.json_result import Count, JsonResult, ScoreEntry, Size
from quantry.recipe.option_fields import option

if TYPE_CHECKING:
    from quantry.diagnosis import Fall, PairDiagnosis
    from quantry.evaluate import Latency, MetricScore
    from quantry.targets.compare import ModelComparison


@dataclass(frozen=True)
class CompareResult(JsonResult):
    """How two models differ.

    Attributes:
        samples: Number of samples.
        metrics: Of all outputs, by metric.
        outputs: The same by output.
        sizes: Bytes of both files.
        target: The target; null if none was given.
        latency: Times of both models; null if they were not timed.
        slow_because: Why the second is not faster; null if it is, or was not timed.
    """

    samples: Count
    metrics: Mapping[str, ScoreEntry]
    outputs: Mapping[str, Mapping[str, ScoreEntry]]
    sizes: tuple[Size, Size]
    target: str | None
    latency: "Latency | None"
    slow_because: str | None


@dataclass(frozen=True)
class PairResult(JsonResult):
    """Where a quantized model departs from its float model.

    Attributes:
        samples: Number of samples.
        sqnr: Signal-to-noise ratio of the outputs in dB.
        falls: The nodes that lose most.
        tensors: The same ratio of every tensor that both models have.
        target: The target; null if none was given.
        departures: The nodes where the target departs from the simulation; null without a target.
    """

    samples: Count
    sqnr: float
    falls: "tuple[Fall, ...]"
    tensors: Mapping[str, float]
    target: str | None
    departures: "tuple[Fall, ...] | None"


@dataclass(frozen=True)
class CompareArguments(OptionGroup):
    """Options of the command.

    Attributes:
        data: Images or arrays, as for `quantry quantize`.
        samples: Maximum number of samples.
        target: Target with a backend: the second model runs there.
        report: HTML file: how close the outputs are and where the models depart, tensor by tensor.
        latency: Timed runs of both, interleaved, on the target or ort-cpu.
    """

    data: Path | None = option(None, "-d")
    samples: int = 100
    target: str | None = None
    report: Path | None = None
    latency: int = 0


def compare(
    reference: Annotated[Path, typer.Argument(help="The model to compare with, usually the float model.")],
    model: Annotated[Path, typer.Argument(help="The other model, quantized by any tool.")],
    *,
    arguments: CompareArguments,
    images: ImageArguments,
) -> None:
    """Compare the outputs, size and speed of two models, whatever tools wrote them."""
    from quantry.targets import measure_on_target, place, slow_because
    from quantry.targets.arithmetic import require_backend
    from quantry.targets.compare import compare_models, runnable

    target, report = arguments.target, arguments.report
    feeds = samples_for(reference, arguments.data, images.given(), arguments.samples)
    backend = None if target is None else require_backend(target)
    comparison = compare_models(reference, model, feeds, backend)
    times, slow = None, None
    if arguments.latency:
        where_timed, first = target or "ort-cpu", next(iter(feeds))
        ours, theirs = runnable(reference), runnable(model)
        times = measure_on_target(where_timed, ours, theirs, first, arguments.latency)
        float_nodes, nodes = (place(content, where_timed, first).nodes for content in (ours, theirs))
        slow = slow_because(times, nodes, where_timed, float_nodes)
    _show(comparison, times, slow, target)
    if report is not None:
        from quantry.diagnosis import diagnose_pair

        pair = replace(diagnose_pair(reference, model, feeds, target), outputs=comparison)
        _write(pair, report, f"{reference.name} and {model.name}", target, times)


def _write(pair: "PairDiagnosis", report: Path, title: str, target: str | None, times: "Latency | None") -> None:
    from quantry.report import write_pair_report

    check_output(report)
    written = write_pair_report(pair, report, title, target=target, latency=times)
    current_output().answer.print(f"wrote {escape(str(written))}", soft_wrap=True)


def _show(comparison: "ModelComparison", times: "Latency | None", slow: str | None, target: str | None) -> None:
    from quantry.evaluate import UNITS, score_texts, size_text, speed_text

    output = current_output()
    if slow is not None:
        output.answer.print(f"[bold yellow]{escape(slow)}[/]", soft_wrap=True)
    suffix = "" if target is None else f", the second on {target}"
    table = Table(title=f"{'one sample' if comparison.samples == 1 else f'{comparison.samples} samples'}{suffix}")
    for heading in ("output", "metric", "value", "95 % interval"):
        table.add_column(heading, justify="left" if heading in ("output", "metric") else "right")
    for name, scores in {
        "all": comparison.metrics,
        **(comparison.outputs if len(comparison.outputs) > 1 else {}),
    }.items():
        for metric, score in scores.items():
            unit = f", {UNITS[metric]}" if metric in UNITS else ""
            # One sample does not show the variation between samples.
            value, interval = score_texts(score.value, score.interval if comparison.samples > 1 else None)
            table.add_row(escape(name), f"{metric}{unit}", value, interval or "one sample")
    output.answer.print(table)
    ours, theirs = comparison.sizes
    output.console.print(f"size {ours:,} and {theirs:,} bytes: {size_text(ours, theirs)}", highlight=False)
    if times is not None:
        output.console.print(
            f"latency {times.float_ms:.2f} and {times.quantized_ms:.2f} ms: "
            f"{speed_text(times.float_ms, times.quantized_ms)}",
            highlight=False,
        )
    metrics, outputs = (
        _entries(comparison.metrics),
        {name: _entries(scores) for name, scores in comparison.outputs.items()},
    )
    result = CompareResult.of(
        comparison, metrics=metrics, outputs=outputs, target=target, latency=times, slow_because=slow
    )
    output.result(result)


def _entries(scores: "Mapping[str, MetricScore]") -> dict[str, ScoreEntry]:
    return {name: ScoreEntry(score.value, score.interval) for name, score in scores.items()}


def diagnose_models(
    reference: Path, model: Path, data: Path, images: dict[str, Any], target: str | None, report: Path | None = None
) -> None:
    """Print where a quantized model of any tool loses accuracy, node by node, and where the target departs from it.

    Args:
        reference: The float model.
        model: The quantized model.
        data: Inputs of both.
        images: Fields of `ImageOptions` that were given.
        target: A target with a backend, or None.
        report: Write an HTML page to this file.
    """
    from quantry.diagnosis import diagnose_pair
    from quantry.diagnosis.pair import SAMPLES

    pair = diagnose_pair(reference, model, samples_for(reference, data, images, SAMPLES), target)
    if report is not None:
        _write(pair, report, f"{reference.name} and {model.name}", target, None)
    output = current_output()
    sqnr = pair.outputs.metrics["sqnr"].value
    output.answer.print(f"the outputs keep {sqnr:.1f} dB on {pair.samples} samples", highlight=False)
    output.answer.print(_falls_table("Where accuracy is lost", pair.falls))
    if pair.departures is not None and pair.on_target is not None:
        simulated_sqnr = pair.on_target.metrics["sqnr"].value
        output.answer.print(f"{target} keeps {simulated_sqnr:.1f} dB of the simulated outputs", highlight=False)
        output.answer.print(_falls_table(f"Where {target} departs from the simulation", pair.departures))
    output.result(PairResult.of(pair, sqnr=sqnr, tensors=pair.gathered, target=target))


def _falls_table(title: str, falls: "tuple[Fall, ...]") -> Table:
    table = Table(title=escape(title))
    for heading in ("node", "operator", "tensor", "before dB", "after dB", "lost dB"):
        table.add_column(heading, justify="right" if heading.endswith("dB") else "left", overflow="fold")
    for fall in falls:
        numbers = (f"{value:.1f}" for value in (fall.before, fall.after, fall.lost))
        table.add_row(escape(fall.node), fall.operator, escape(fall.tensor), *numbers)
    return table
