"""What to do after a search that found nothing within tolerance: how far it is, what limits it, the next command."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from quantry.cli.frame import Output
from quantry.errors import QuantryError
from quantry.recipe.json_result import JsonResult

if TYPE_CHECKING:
    from quantry.autosearch import SearchResult
    from quantry.cli.search_job import SearchJob

_FINDINGS = 3
_FALLS = 3
# A search that ran into a limit gets this many times as much.
_MORE = 3
# The budget of a search without any limit.
_USUAL_SECONDS = 600.0


@dataclass(frozen=True)
class Advice(JsonResult):
    """What limits the best model, and what to try next.

    Attributes:
        missing: How far the best is from the tolerance.
        limits: What `diagnose` found in the best model.
        next_step: What to try next.
        command: The command for it.
    """

    missing: str
    limits: tuple[str, ...]
    next_step: str
    command: str

    def show(self, output: Output) -> None:
        """Print it."""
        console = output.answer
        console.print(f"[bold yellow]not good enough:[/] {escape(self.missing)}", soft_wrap=True)
        for line in self.limits:
            console.print(f"  limited by: {escape(line)}", soft_wrap=True, highlight=False)
        console.print(f"  next: {escape(self.next_step)}", soft_wrap=True, highlight=False)
        console.print(f"    {escape(self.command)}", soft_wrap=True, highlight=False)


def advice_for(job: "SearchJob", result: "SearchResult", line: Mapping[str, Any]) -> Advice | None:
    """Return advice if no trial is within tolerance, or none could be evaluated; otherwise None.

    Args:
        job: What was searched.
        result: What was found.
        line: Options on the command line, and ``what``, the model or the file.
    """
    if result.candidates:
        return None
    best = result.best
    if best is None:
        errors = [trial.error for trial in result.trials if trial.error is not None]
        missing = f"no trial could be evaluated: {len(errors)} of {len(result.trials)} failed"
        return Advice(missing, tuple(dict.fromkeys(errors))[:_FINDINGS], *_next(job, result, line))
    missing = (
        f"the best, trial {best.number}, is {best.drop:.4g} worse than the float model; the tolerance is "
        f"{result.tolerance:.4g}"
    )
    return Advice(missing, _limits(job, result), *_next(job, result, line))


def _limits(job: "SearchJob", result: "SearchResult") -> tuple[str, ...]:
    """Diagnose the best model; its stages are in the store of the search, so this quantizes nothing again."""
    from quantry.diagnosis import diagnose
    from quantry.quantization import quantize

    assert result.best is not None
    data = result.output_dir / "calibration.npz"
    samples = data if data.exists() else job.calibration(result.output_dir)
    try:
        quantized = quantize(job.model, samples, result.best.recipe, store=result.output_dir / "store")
        diagnosis = diagnose(quantized)
    except QuantryError as error:
        return (f"diagnose failed: {error}",)
    # The first line says how close the outputs are; the findings and the worst nodes follow.
    outputs = str(diagnosis).splitlines()[0]
    falls = [
        f"{fall.operator} {fall.node} loses {fall.lost:.1f} dB ({fall.before:.1f} before, {fall.after:.1f} after)"
        for fall in diagnosis.falls[:_FALLS]
    ]
    return (*map(str, diagnosis.findings[:_FINDINGS]), *falls, outputs)


def _next(job: "SearchJob", result: "SearchResult", line: Mapping[str, Any]) -> tuple[str, str]:
    """Return what to try next, and the command for it."""
    from quantry.autosearch import StopKind

    options = job.options
    if job.space not in (None, "default"):
        fewer = {name: value for name, value in line.items() if name != "space"}
        return "search the default space, which starts with the recommended recipes", search_command(fewer)
    if result.stopped_by.kind is StopKind.TIME:
        seconds = options.seconds or _USUAL_SECONDS
        return "continue with more time", search_command({**line, "budget": f"{round(_MORE * seconds)}s"})
    if result.stopped_by.kind is StopKind.TRIALS and options.n_trials is not None:
        return "continue with more trials", search_command({**line, "n_trials": _MORE * options.n_trials})
    more = {**line, "calibration_samples": None, "output_dir": Path(f"{result.output_dir}-latency")}
    if "objectives" not in line:
        return (
            "accept a larger drop, or search for the fastest model within one",
            search_command({**more, "tolerance": "3%", "objectives": ["latency"]}),
        )
    return "accept a larger drop", search_command({**line, "tolerance": "3%"})


def search_command(line: Mapping[str, Any]) -> str:
    """Return a search command.

    Args:
        line: Names of options to values; ``what`` is the argument, and None is omitted.
    """
    words = ["quantry", "search", str(line["what"])]
    for name, value in line.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "what" or value is None or value is False:
            continue
        if value is True:
            words.append(flag)
            continue
        # With "=": a value that starts with a minus sign would be parsed as another option.
        words += [f"{flag}={item}" for item in (value if isinstance(value, list | tuple) else [value])]
    return shlex.join(words)
