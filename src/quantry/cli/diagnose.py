"""``quantry diagnose``: where a quantized model loses accuracy, why, and what helps."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from quantry.cli.compare import diagnose_models
from quantry.cli.console import check_model, check_output
from quantry.cli.frame import ExitCode, Output, current_output
from quantry.cli.image_arguments import ImageArguments, warn_of_default_pixels
from quantry.errors import RecipeError
from quantry.recipe import Recipe, from_plain, resolve_recipe
from quantry.recipe.json_result import Count, JsonResult, Share

if TYPE_CHECKING:
    from quantry.auto import Fixed, OutcomeFacts
    from quantry.diagnosis import CalibrationCheck, Diagnosis
    from quantry.diagnosis.counterfactual import Rest
    from quantry.diagnosis.evidence import Fall, Finding
    from quantry.quantization import QuantizationResult

_RECIPE = "Recipe file, preset, or a model that quantry wrote. Default: what the target recommends."
_QUANTIZED = "Quantized model of any tool: compare its tensors with the float model's instead of quantizing."
_FIX = "Try every suggested fix on held-out samples, combine those that help and write the fixed model."
_CALIBRATION = (
    "Only check the calibration data: enough samples, similar to --evaluation-data, right colours and pixels."
)
_EVALUATION = (
    "Other data, in the same forms: errors are measured on them, and they are compared with the calibration data."
)
_EFFORT = "How long --fix may take: low, default (about a minute of CPU time) or high."
_SHOWN_FALLS, _SHOWN_TENSORS = 5, 3
_OUTPUT = "The fixed model, with --fix; default: in the current folder, named after the model."


@dataclass(frozen=True)
class DataFinding(JsonResult):
    """Something that is wrong with calibration data.

    Attributes:
        title: What was found.
        tensors: The tensors, worst first.
        fix: What helps, in words.
    """

    title: str
    tensors: tuple[str, ...]
    fix: str


@dataclass(frozen=True)
class CauseFinding(DataFinding):
    """A cause of lost accuracy.

    Attributes:
        fixes: Changes that --fix tries.
        gain: dB that the best fix gains on held-out samples; null if none was tried.
        cost: dB that the cause takes from the outputs; null if that cannot be measured.
        decisions: Share of the decisions that it changes.
    """

    fixes: tuple[str, ...]
    gain: float | None
    cost: float | None
    decisions: float


@dataclass(frozen=True)
class PixelValues(JsonResult):
    """A way to read pixels.

    Attributes:
        label: Colour order and values.
        certainty: How certain the outputs are.
        first_layer: Decimal logarithm of the first layer's results compared with its biases; null without biases.
    """

    label: str
    certainty: float
    first_layer: float | None


@dataclass(frozen=True)
class CalibrationResult(JsonResult):
    """The check of calibration data.

    Attributes:
        samples: Number of calibration samples.
        half: Share of the ranges that half of them reach; null with one sample.
        settled_after: Number of samples after which ranges are settled; null if they still grow.
        growing: Tensors whose ranges grow most.
        evaluated: Number of evaluation samples that were compared.
        outside: Share of their values outside of what was seen in calibration; null without them.
        exceeded: Tensors with most values outside.
        similarity: Share of the distributions that both have in common; null without evaluation samples.
        pixels: Colours and pixel values, as given first; null for other data than images.
        findings: What is wrong with the data.
    """

    samples: Count
    half: float | None
    settled_after: Count | None
    growing: tuple[str, ...]
    evaluated: Count
    outside: float | None
    exceeded: tuple[str, ...]
    similarity: float | None
    pixels: tuple[PixelValues, ...] | None
    findings: tuple[DataFinding, ...]

    @classmethod
    def of_check(cls, check: "CalibrationCheck") -> "CalibrationResult":
        """Return the result of a check."""
        pixels = () if check.pixels is None else (check.pixels.current, *check.pixels.alternatives)
        return cls.of(
            check,
            pixels=tuple(map(PixelValues.of, pixels)) or None,
            findings=tuple(map(DataFinding.of, check.findings)),
        )


@dataclass(frozen=True)
class DiagnosisResult(JsonResult):
    """Where a quantized model loses accuracy, why, and what helps.

    Attributes:
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of decisions that are those of the float model; null if outputs hold no decision.
        ties: Share of samples with equal highest scores; null if outputs hold no decision.
        findings: Causes, most expensive first.
        rest: dB that the outputs would keep without the causes; null if that is unknown.
        calibration: The check of the calibration data; null if there was none.
        falls: The nodes that lose most.
        fixed: What --fix tried and kept; null without it.
        written: The files.
    """

    decibels: float
    agreement: Share | None
    ties: Share | None
    findings: tuple[CauseFinding, ...]
    rest: "Rest | None"
    calibration: CalibrationResult | None
    falls: "tuple[Fall, ...]"
    fixed: "OutcomeFacts | None"
    written: tuple[Path, ...]


def diagnose(  # noqa: PLR0913, PLR0917  the command line's options are its parameters
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    quantized: Annotated[Path | None, typer.Argument(help=_QUANTIZED)] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Calibration data, as for `quantry quantize`.")
    ] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", "--preset", "-p", help=_RECIPE)] = None,
    target: Annotated[str | None, typer.Option(help="Deployment target, which may rule out fixes.")] = None,
    evaluation_data: Annotated[Path | None, typer.Option(help=_EVALUATION)] = None,
    calibration: Annotated[bool, typer.Option("--calibration", help=_CALIBRATION)] = False,
    fix: Annotated[bool, typer.Option("--fix", help=_FIX)] = False,
    effort: Annotated[str, typer.Option(help=_EFFORT)] = "default",
    report: Annotated[Path | None, typer.Option(help="HTML file with everything that was found.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=_OUTPUT)] = None,
    *,
    images: ImageArguments,
    store: Annotated[str, typer.Option(help="Folder for cached results, 'default' or 'none'.")] = "default",
) -> None:
    """Find out where a quantized model loses accuracy and why; with --fix, act on it."""
    data = _checked_data(data, model)
    if quantized is not None and (fix or recipe is not None or calibration or evaluation_data is not None):
        raise RecipeError(
            "--fix, --recipe, --calibration and --evaluation-data quantize the float model, got one of them with the "
            f"quantized model {quantized}"
        )
    if not fix and (output is not None or effort != "default"):
        raise RecipeError("--output and --effort are about the fixed model and need --fix, got one of them without it")
    if calibration and (fix or report is not None):
        raise RecipeError("--calibration checks the data alone, got it with --fix or --report")
    if quantized is not None:
        diagnose_models(model, quantized, data, images.given(), target, report)
        return
    fixing = _Fixing(output or Path(f"{model.stem}.fixed.onnx"), target, effort) if fix else None
    for file in (report, None if fixing is None else fixing.written_to):
        if file is not None:
            check_output(file)
    tried, options = _recipe(recipe, target), images.options()
    from quantry.quantization import quantize

    if options is None:
        warn_of_default_pixels(model, data)
    stored = None if store == "none" else store
    result = quantize(model, data, tried, target=target, evaluation_data=evaluation_data, images=options, store=stored)
    if calibration:
        _check_calibration(result)
    else:
        _diagnose(result, fixing, report, model.name)


def _checked_data(data: Path | None, model: Path) -> Path:
    check_model(model)
    if data is None:
        raise RecipeError("a diagnosis needs --data, got none")
    return data


@dataclass(frozen=True)
class _Fixing:
    """What ``--fix`` does.

    Attributes:
        written_to: The file of the fixed model.
        target: Name of the deployment target, or None.
        effort: How long it may take.
    """

    written_to: Path
    target: str | None
    effort: str


def _diagnose(result: "QuantizationResult", fixing: _Fixing | None, report: Path | None, title: str) -> None:
    """Diagnose a quantized model and print what was found; with ``--fix``, fix and write it."""
    from quantry.auto import fix
    from quantry.diagnosis import diagnose
    from quantry.report import write_report

    fixed = None if fixing is None else fix(result, target=fixing.target, effort=fixing.effort)
    diagnosis = diagnose(result) if fixed is None else fixed.diagnosis
    final = result if fixed is None else fixed.result
    written = () if fixing is None else final.save(fixing.written_to)
    if report is not None:
        written = (*written, write_report(final, report, title, diagnosis=diagnosis))
    _show(diagnosis, fixed, written)


def _recipe(name: str | None, target: str | None) -> Recipe:
    """Return the recipe to diagnose."""
    from quantry.targets import default_target, find_target

    if name is None:
        deployed = default_target() if target is None else find_target(target)
        return resolve_recipe(deployed.recommended[0])[0]
    if Path(name).suffix != ".onnx":
        return resolve_recipe(name)[0]
    from quantry.graph.load import read_model

    written = read_model(Path(name)).metadata_props.get("quantry.recipe")
    if written is None:
        raise RecipeError(
            f"--recipe must be a recipe, or a model that quantry wrote, got {name} without a recipe in it"
        )
    return from_plain(json.loads(written))


def _show(diagnosis: "Diagnosis", fixed: "Fixed | None", written: tuple[Path, ...]) -> None:
    from quantry.cli.quantize_summary import steps_table
    from quantry.diagnosis.diagnosis import outputs_line

    out = current_output()
    out.item("", outputs_line(diagnosis.closeness), is_answer=True)
    for number, finding in enumerate(diagnosis.findings, 1):
        _show_finding(out, number, finding)
    if not diagnosis.findings:
        out.item("", "no known cause of accuracy loss was found", is_answer=True)
    if diagnosis.rest is not None:
        out.item("", str(diagnosis.rest), is_answer=True)
    if diagnosis.falls:
        out.console.print(_falls_table(diagnosis.falls[:_SHOWN_FALLS]))
    if fixed is not None:
        out.console.print(steps_table(fixed.result.auto))
        for note in fixed.result.notes:
            out.item("  note: ", str(note))
    for path in written:
        out.answer.print(f"wrote {escape(str(path))}", soft_wrap=True)
    out.result(_result(diagnosis, fixed, written))


def _show_finding(out: Output, number: int, finding: "Finding") -> None:
    """Print a cause: what it is, what it costs, what helps, and where."""
    from quantry.diagnosis.evidence import sentence

    out.item(f"{number}. ", sentence(finding.title), is_answer=True)
    more = len(finding.tensors) - _SHOWN_TENSORS
    listed = ", ".join(finding.tensors[:_SHOWN_TENSORS]) + (f" and {more} more" if more > 0 else "")
    gain = "" if finding.gain is None else f"{finding.gain:+.1f} dB on held-out samples"
    for label, text in (("costs", finding.costs), ("helps", finding.fix), ("gains", gain), ("where", listed)):
        if text:
            out.item(f"   {label}: ", text, is_answer=True)


def _falls_table(falls: "Sequence[Fall]") -> Table:
    table = Table("where most is lost", box=SIMPLE, pad_edge=False)
    for heading in ("dB before", "dB after"):
        table.add_column(heading, justify="right", no_wrap=True)
    for fall in falls:
        start = "exact" if math.isinf(fall.before) else f"{fall.before:.1f}"
        table.add_row(escape(f"{fall.operator} {fall.node}"), start, f"{fall.after:.1f}")
    return table


def _check_calibration(result: "QuantizationResult") -> None:
    """Print what is known about the calibration data; exit code 3 if something is wrong with them."""
    from quantry.diagnosis import check_calibration

    out = current_output()
    check = check_calibration(result)
    if check is None:
        raise RecipeError("--calibration needs a recipe that calibrates activations, got one that does not")
    out.answer.print(escape(str(check)), highlight=False, soft_wrap=True)
    out.result(CalibrationResult.of_check(check), ExitCode.NOT_GOOD_ENOUGH if check.findings else ExitCode.GOOD)


def _result(diagnosis: "Diagnosis", fixed: "Fixed | None", written: tuple[Path, ...]) -> DiagnosisResult:
    from quantry.auto import outcome_facts

    closeness, calibration = diagnosis.closeness, diagnosis.calibration
    return DiagnosisResult.of(
        diagnosis,
        decibels=closeness.mean_decibels,
        agreement=closeness.mean_agreement,
        ties=closeness.mean_ties,
        findings=tuple(
            CauseFinding.of(finding, fixes=tuple(fix.label for fix in finding.fixes)) for finding in diagnosis.findings
        ),
        calibration=None if calibration is None else CalibrationResult.of_check(calibration),
        fixed=None if fixed is None else outcome_facts(fixed.result.auto),
        written=written,
    )
