"""``quantry quantize``: quantize a float model."""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from quantry.cli.console import check_model, check_output
from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ExplainedImageArguments, image_notes, warn_of_default_pixels
from quantry.cli.quantize_summary import Summary, quantize_result, show, useless_because
from quantry.errors import RecipeError
from quantry.notes import Note, NoteKind
from quantry.recipe import Dimension, Recipe, Selection, resolve_recipe

if TYPE_CHECKING:
    from quantry.auto import AutoInputs, Effort
    from quantry.quantization import QuantizationResult
    from quantry.targets import Target

_AUTO = "auto"
_EFFORT = "How long auto may search: low, default (about a minute of CPU time) or high (with training)."
_OUTPUT = "Output file; default: in the current folder, named after the model and the recipe."
_TARGET = "Deployment target, or a .yaml or .py file; see `quantry targets`. The recipe is adapted to its rules."
_BATCH = "Fix a dynamic batch size; targets with static shapes take 1 unless it is given."
_DIMENSION = "Fix another dynamic axis by its name, such as height=224; repeatable."
_FORCE = "Write the model even if it is useless: no data where data are needed, or nothing quantized."
_DECODER = "Decoder of a detector: yolox, yolov5, yolov8 or boxes; the report then draws its boxes on images."


def quantize(  # noqa: PLR0913, PLR0917  the command line's options are its parameters
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", help="Folder of images or .npy/.npz files, one such file, or a .txt list."),
    ] = None,
    evaluation_data: Annotated[
        Path | None, typer.Option(help="Data for the comparison with the float model; default: --data.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", help="Name of a preset; see `quantry presets`.", show_default="auto"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="Recipe file, YAML or JSON, a preset's name, or auto.")
    ] = None,
    target: Annotated[str | None, typer.Option(help=_TARGET)] = None,
    batch: Annotated[int | None, typer.Option(help=_BATCH)] = None,
    dimension: Annotated[list[str] | None, typer.Option(help=_DIMENSION)] = None,
    effort: Annotated[str, typer.Option(help=_EFFORT)] = "default",
    output: Annotated[Path | None, typer.Option("--output", "-o", help=_OUTPUT)] = None,
    samples: Annotated[int | None, typer.Option(help="Maximum number of calibration samples.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Node to keep float, or ^regex; repeatable.")] = None,
    *,
    images: ExplainedImageArguments,
    evaluate: Annotated[bool, typer.Option(help="Compare with the float model.")] = True,
    latency: Annotated[int, typer.Option(help="Number of timed runs to compare latency; 0 for none.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report: accuracy lost, where and why; tensors; the recipe.")
    ] = None,
    decoder: Annotated[str | None, typer.Option(help=_DECODER)] = None,
    verify: Annotated[
        bool, typer.Option(help="Check that onnxruntime and onnx's checker accept the written model.")
    ] = True,
    store: Annotated[str, typer.Option(help="Folder for cached results, 'default' or 'none'.")] = "default",
    force: Annotated[bool, typer.Option("--force", help=_FORCE)] = False,
) -> None:
    """Quantize a float ONNX model; exit code 3 if the result is useless."""
    if preset and recipe:
        raise RecipeError(f"give --preset or --recipe, not both; got {preset!r} and {recipe!r}")
    changes = _Changes(samples, tuple(exclude or ()), latency, batch, tuple(dimension or ()))
    wanted = _Wanted.of(recipe or preset or _AUTO, changes)
    file = output or Path(f"{model.stem}.{_file_name(wanted.name)}.onnx")
    _check_files(model, file, report, decoder)
    options = images.options()
    if options is not None and data is None:
        raise RecipeError("image options need --data, got none; random data are not images")
    # Imported only now, so that a misspelt argument is reported at once.
    from quantry.auto import AutoInputs, find_effort
    from quantry.targets import find_target

    spent, deployed = find_effort(effort), None if target is None else find_target(target)
    if options is None:
        warn_of_default_pixels(model, data)
    inputs = AutoInputs(model, data, evaluation_data, options, None if store == "none" else store, verify)
    result = wanted.run(inputs, deployed, spent)
    useless = useless_because(result)
    usable = useless is None or force
    written = result.save(file) if usable else ()
    if report is not None:
        written = (*written, _written_report(result, report, model.name, decoder))
    timed = _slow_because(result, target, latency) if latency and evaluate else None
    slow = (Note.of("{reason}", NoteKind.IMPORTANT, reason=timed),) if timed else ()
    extra_notes = (*slow, *wanted.notes, *image_notes(data, options))
    compared_on = str(evaluation_data or ("the calibration samples" if data is not None else "random samples"))
    advice = _next_command(model, written[0], data, images) if usable else ""
    summary = Summary(result, written, evaluate, extra_notes, compared_on, useless, advice)
    out = current_output()
    if slower := timed or result.slow_because:
        out.answer.print(f"[bold yellow]{escape(slower)}[/]", soft_wrap=True)
    show(out, summary)
    out.result(quantize_result(model, summary), ExitCode.GOOD if usable else ExitCode.NOT_GOOD_ENOUGH)


def _next_command(model: Path, written: Path, data: Path | None, images: ExplainedImageArguments) -> str:
    """Return what to do with a quantized model: only labels show what it is worth in use."""
    given = [] if data is None else ["--data", str(data)]
    words = ["quantry", "evaluate", str(written), "--float", str(model), *given, *images.words()]
    return (
        f"score it with labels: {shlex.join(words)} {'--metric top1' if _is_by_class(data) else '--labels labels.csv'}"
    )


def _is_by_class(data: Path | None) -> bool:
    """Whether data are images in one folder per class, which need no file of labels."""
    from quantry.data.images import IMAGE_SUFFIXES

    if data is None or not data.is_dir():
        return False
    folders = {path.parent for path in data.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES}
    return len(folders) > 1 and data not in folders


def _written_report(result: "QuantizationResult", path: Path, title: str, decoder: str | None) -> Path:
    from quantry.report import write_report

    return write_report(result, path, title, decoder=decoder)


def _slow_because(result: "QuantizationResult", target: str | None, runs: int) -> str | None:
    """Return that the quantized model is not faster than the float model on the target; None if it is, or unknown."""
    from quantry.targets import backend_of, measure_on_target, place, slow_because

    name = target or result.recipe.target or "ort-cpu"
    backend = backend_of(name)
    if backend is None or backend.emulated:
        return None
    feeds = next(iter(result.evaluation_data))
    content, reference = result.to_bytes(), result.stages.prepared.value.model
    times = result.evaluation.latency
    if times is None or backend.name != "ort-cpu":
        times = measure_on_target(name, reference, content, feeds, runs)
    return slow_because(times, place(content, name, feeds).nodes, name, place(reference, name, feeds).nodes)


def with_sizes(recipe: Recipe, batch: int | None, dimensions: list[str]) -> Recipe:
    """Return the recipe with sizes of dynamic axes.

    Args:
        recipe: The recipe.
        batch: Size of the first axis of the inputs; None keeps the recipe's.
        dimensions: Further sizes, each as ``NAME=SIZE``.

    Raises:
        RecipeError: A size is not a positive number.
    """
    sizes = list(recipe.prepare.dimensions)
    for given in dimensions:
        name, _, size = given.partition("=")
        if not name or not size.isdigit():
            raise RecipeError(f"--dimension must be NAME=SIZE, such as height=224, got {given!r}")
        sizes.append(Dimension(name, int(size)))
    batch = recipe.prepare.batch if batch is None else batch
    return replace(recipe, prepare=replace(recipe.prepare, batch=batch, dimensions=tuple(sizes)))


def _file_name(recipe_name: str) -> str:
    """Return a file name for a recipe's name, which may contain any characters."""
    return re.sub(r'[\\/:*?"<>|\x00-\x1f]+', "-", recipe_name)


def _check_files(model: Path, target: Path, report: Path | None, decoder: str | None) -> None:
    """Raise before any work if the model is missing, or an output cannot be written or would overwrite the model."""
    check_output(target)
    if target.exists() and model.exists() and target.samefile(model):
        raise RecipeError(f"--output must not be the float model itself, got {target}")
    if report is not None:
        _check_report(report, target, model)
    _check_decoder(decoder, report)
    check_model(model)


def _check_decoder(decoder: str | None, report: Path | None) -> None:
    if decoder is None:
        return
    if report is None:
        raise RecipeError(f"--decoder draws boxes in the report and needs --report, got {decoder!r} without it")
    from quantry.evaluate.tasks import find_decoder

    find_decoder(decoder)


def _check_report(report: Path, target: Path, model: Path) -> None:
    check_output(report, "--report")
    if report.absolute() == target.absolute():
        raise RecipeError(f"--report must not be the quantized model, got {report}")
    if report.exists() and model.exists() and report.samefile(model):
        raise RecipeError(f"--report must not be the float model itself, got {report}")


@dataclass(frozen=True)
class _Changes:
    """Options of the command line that change a recipe.

    Attributes:
        samples: Maximum number of calibration samples; None keeps the recipe's.
        exclude: Nodes to keep float.
        latency: Number of timed runs; 0 keeps the recipe's.
        batch: Size of the first axis of the inputs; None keeps the recipe's.
        dimensions: Further sizes, each as ``NAME=SIZE``.
    """

    samples: int | None
    exclude: tuple[str, ...]
    latency: int
    batch: int | None
    dimensions: tuple[str, ...]

    def __call__(self, recipe: Recipe) -> Recipe:
        """Return the changed recipe."""
        selection: Selection = recipe.plan.selection
        observe, evaluate = recipe.observe, recipe.evaluate
        return replace(
            with_sizes(recipe, self.batch, list(self.dimensions)),
            observe=observe if self.samples is None else replace(observe, samples=self.samples),
            plan=replace(recipe.plan, selection=replace(selection, exclude=(*selection.exclude, *self.exclude))),
            evaluate=replace(evaluate, latency_runs=self.latency or evaluate.latency_runs),
        )


@dataclass(frozen=True)
class _Wanted:
    """How to quantize: with one recipe, or with the one that auto finds.

    Attributes:
        recipe: The recipe; None lets auto find one.
        changes: Options that change every recipe.
        notes: What the user should know about the recipe.
    """

    recipe: Recipe | None
    changes: _Changes
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, name: str, changes: _Changes) -> "_Wanted":
        """Find a recipe by its name or file, so that a misspelt one is reported before any work."""
        if name.lower() == _AUTO:
            return cls(None, changes)
        recipe, notes = resolve_recipe(name)
        return cls(changes(recipe), changes, notes)

    @property
    def name(self) -> str:
        """The recipe's name, for the name of the output file."""
        return _AUTO if self.recipe is None else self.recipe.name

    def run(self, inputs: "AutoInputs", target: "Target | None", effort: "Effort") -> "QuantizationResult":
        """Quantize.

        Args:
            inputs: The model and the data.
            target: The deployment target; None if the user named none.
            effort: How long auto may search.
        """
        from quantry.auto import quantize_auto, require_auto
        from quantry.quantization import quantize as quantize_with
        from quantry.targets import default_target

        if self.recipe is None:
            return quantize_auto(inputs, target or default_target(), effort, self.changes)
        require_auto(effort)
        settings = {name: getattr(inputs, name) for name in ("evaluation_data", "images", "store", "verify")}
        return quantize_with(inputs.model, inputs.data, self.recipe, target=target, **settings)
