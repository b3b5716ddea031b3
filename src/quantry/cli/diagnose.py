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
from quantry.cli.option_parameters import OptionGroup
from quantry.errors import RecipeError
from quantry.recipe import Recipe, from_plain, resolve_recipe
from quantry.recipe.json_result import Count, JsonResult, Share
from quantry.recipe.option_fields import option

if TYPE_CHECKING:
    from quantry.auto import AutoFacts, FixResult
    from quantry.diagnosis import CalibrationCheck, Diagnosis
    from quantry.diagnosis.counterfactual import Rest
    from quantry.diagnosis.evidence import Fall, Finding
    from quantry.quantization import QuantizationResult

_QUANTIZED = "Quantized model of any tool: compare its tensors with the float model's instead of quantizing."
_SHOWN_FALLS, _SHOWN_TENSORS = 5, 3


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
    fixed: "AutoFacts | None"
    written: tuple[Path, ...]


@dataclass(frozen=True)
class DiagnoseArguments(OptionGroup):
    """Options of the command.

    Attributes:
        data: Calibration data, as for `quantry quantize`.
        recipe: Recipe file, preset, or a model that quantry wrote; default: what the target recommends.
        target: Deployment target, which may rule out fixes.
        evaluation_data: Other data, in the same forms: errors are measured on them, and they are compared with the
            calibration data.
        calibration: Only check the calibration data: enough samples, similar to --evaluation-data, right colours and
            pixels.
        fix: Try every suggested fix on held-out samples, combine those that help and write the fixed model.
        effort: How long --fix may take: low, default (about a minute of CPU time) or high.
        report: HTML file with everything that was found.
        output: The fixed model, with --fix; default: in the current folder, named after the model.
        store: Folder for cached results, 'default' or 'none'.
    """

    data: Path | None = option(None, "-d")
    recipe: str | None = option(None, "-r", "--preset", "-p")
    target: str | None = None
    evaluation_data: Path | None = None
    calibration: bool = False
    fix: bool = False
    effort: str = "default"
    report: Path | None = None
    output: Path | None = option(None, "-o")
    store: str = "default"

    def check(self, quantized: Path | None) -> None:
        """Raise if options contradict each other.

        Args:
            quantized: The quantized model; None if the float model is to be quantized.
        """
        quantizes = self.fix or self.recipe is not None or self.calibration or self.evaluation_data is not None
        if quantized is not None and quantizes:
            raise RecipeError(
                "--fix, --recipe, --calibration and --evaluation-data quantize the float model, got one of them with "
                f"the quantized model {quantized}"
            )
        if not self.fix and (self.output is not None or self.effort != "default"):
            raise RecipeError(
                "--output and --effort are about the fixed model and need --fix, got one of them without it"
            )
        if self.calibration and (self.fix or self.report is not None):
            raise RecipeError("--calibration checks the data alone, got it with --fix or --report")


def diagnose(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    quantized: Annotated[Path | None, typer.Argument(help=_QUANTIZED)] = None,
    *,
    arguments: DiagnoseArguments,
    images: ImageArguments,
) -> None:
    """Find out where a quantized model loses accuracy and why; with --fix, act on it."""
    data, target, report = arguments.data, arguments.target, arguments.report
    check_model(model)
    if data is None:
        raise RecipeError("a diagnosis needs --data, got none")
    arguments.check(quantized)
    if quantized is not None:
        diagnose_models(model, quantized, data, images.given(), target, report)
        return
    fixed_file = (arguments.output or Path(f"{model.stem}.fixed.onnx")) if arguments.fix else None
    for file in (report, fixed_file):
        if file is not None:
            check_output(file)
    recipe, options = _recipe(arguments.recipe, target), images.options()
    from quantry.quantization import quantize

    if options is None:
        warn_of_default_pixels(model, data)
    store = None if arguments.store == "none" else arguments.store
    evaluation = arguments.evaluation_data
    result = quantize(model, data, recipe, target=target, evaluation_data=evaluation, images=options, store=store)
    if arguments.calibration:
        _check_calibration(result)
    else:
        _diagnose(result, fixed_file, arguments, model.name)


def _diagnose(result: "QuantizationResult", fixed_file: Path | None, arguments: DiagnoseArguments, title: str) -> None:
    """Diagnose a quantized model and print what was found; with ``--fix``, fix and write it."""
    from quantry.auto import fix
    from quantry.diagnosis import diagnose
    from quantry.report import write_report

    fixed = None if fixed_file is None else fix(result, target=arguments.target, effort=arguments.effort)
    diagnosis = diagnose(result) if fixed is None else fixed.diagnosis
    final = result if fixed is None else fixed.result
    written = () if fixed_file is None else final.save(fixed_file)
    if arguments.report is not None:
        written = (*written, write_report(final, arguments.report, title, diagnosis=diagnosis))
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


def _show(diagnosis: "Diagnosis", fixed: "FixResult | None", written: tuple[Path, ...]) -> None:
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


def _result(diagnosis: "Diagnosis", fixed: "FixResult | None", written: tuple[Path, ...]) -> DiagnosisResult:
    from quantry.auto import auto_facts

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
        fixed=None if fixed is None else auto_facts(fixed.result.auto),
        written=written,
    )
