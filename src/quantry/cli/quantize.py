"""``quantry quantize``: quantize a float model."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from quantry.cli.console import check_model, check_output
from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ExplainedImageArguments, image_notes, warn_of_default_pixels
from quantry.cli.option_parameters import OptionGroup
from quantry.cli.quantize_summary import Summary, quantize_result, show, useless_because
from quantry.errors import RecipeError
from quantry.notes import Note, NoteKind
from quantry.recipe import Dimension, Recipe, Selection, resolve_recipe
from quantry.recipe.option_fields import option

if TYPE_CHECKING:
    from quantry.auto import AutoInputs, Effort
    from quantry.quantization import QuantizationResult
    from quantry.targets import Target

_AUTO = "auto"


@dataclass(frozen=True)
class QuantizeArguments(OptionGroup):
    """Options of the command.

    Attributes:
        data: Folder of images or .npy/.npz files, one such file, or a .txt list.
        evaluation_data: Data for the comparison with the float model; default: --data.
        preset: Name of a preset; see `quantry presets`.
        recipe: Recipe file, YAML or JSON, a preset's name, or auto.
        target: Deployment target, or a .yaml or .py file, see `quantry targets`; the recipe is adapted to its rules.
        batch: Fix a dynamic batch size; targets with static shapes take 1 unless it is given.
        dimension: Fix another dynamic axis by its name, such as height=224; repeatable.
        effort: How long auto may search: low, default (about a minute of CPU time) or high (with training).
        output: Output file; default: in the current folder, named after the model and the recipe.
        samples: Maximum number of calibration samples.
        exclude: Node to keep float, or ^regex; repeatable.
        evaluate: Compare with the float model.
        latency: Number of timed runs to compare latency; 0 for none.
        report: Write an HTML report: accuracy lost, where and why; tensors; the recipe.
        decoder: Decoder of a detector: yolox, yolov5, yolov8 or boxes; the report then draws its boxes on images.
        verify: Check that onnxruntime and onnx's checker accept the written model.
        store: Folder for cached results, 'default' or 'none'.
        force: Write the model even if it is useless: no data where data are needed, or nothing quantized.
    """

    data: Path | None = option(None, "-d")
    evaluation_data: Path | None = option(None, heading="Details")
    preset: str | None = option(None, "-p", shown="auto")
    recipe: str | None = option(None, "-r")
    target: str | None = None
    batch: int | None = option(None, heading="Details")
    dimension: tuple[str, ...] = option((), heading="Details")
    effort: str = "default"
    output: Path | None = option(None, "-o")
    samples: int | None = option(None, heading="Details")
    exclude: tuple[str, ...] = option((), heading="Details")
    evaluate: bool = option(default=True, heading="Details")
    latency: int = option(0, heading="Details")
    report: Path | None = None
    decoder: str | None = option(None, heading="Images")
    verify: bool = option(default=True, heading="Details")
    store: str = option("default", heading="Details")
    force: bool = False

    def changed(self, recipe: Recipe) -> Recipe:
        """Return a recipe with the changes that the options ask for."""
        selection: Selection = recipe.plan.selection
        observe, evaluate = recipe.observe, recipe.evaluate
        return replace(
            with_sizes(recipe, self.batch, self.dimension),
            observe=observe if self.samples is None else replace(observe, samples=self.samples),
            plan=replace(recipe.plan, selection=replace(selection, exclude=(*selection.exclude, *self.exclude))),
            evaluate=replace(evaluate, latency_runs=self.latency or evaluate.latency_runs),
        )

    def check_files(self, model: Path, file: Path) -> None:
        """Raise before any work if the model is missing, or an output cannot be written or would overwrite the model.

        Args:
            model: The model.
            file: The output file.
        """
        check_output(file)
        if file.exists() and model.exists() and file.samefile(model):
            raise RecipeError(f"--output must not be the float model itself, got {file}")
        if self.report is not None:
            check_output(self.report, "--report")
            if self.report.absolute() == file.absolute():
                raise RecipeError(f"--report must not be the quantized model, got {self.report}")
            if self.report.exists() and model.exists() and self.report.samefile(model):
                raise RecipeError(f"--report must not be the float model itself, got {self.report}")
        if self.decoder is not None:
            if self.report is None:
                raise RecipeError(
                    f"--decoder draws boxes in the report and needs --report, got {self.decoder!r} without it"
                )
            from quantry.evaluate.tasks import find_decoder

            find_decoder(self.decoder)
        check_model(model)


def quantize(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    *,
    arguments: QuantizeArguments,
    images: ExplainedImageArguments,
) -> None:
    """Quantize a float ONNX model; exit code 3 if the result is useless."""
    preset, name, data = arguments.preset, arguments.recipe, arguments.data
    if preset and name:
        raise RecipeError(f"give --preset or --recipe, not both; got {preset!r} and {name!r}")
    recipe, recipe_notes = _resolved(name or preset or _AUTO, arguments)
    file = arguments.output or Path(f"{model.stem}.{_file_name(_AUTO if recipe is None else recipe.name)}.onnx")
    arguments.check_files(model, file)
    options = images.options()
    if options is not None and data is None:
        raise RecipeError("image options need --data, got none; random data are not images")
    # Imported only now, so that a misspelt argument is reported at once.
    from quantry.auto import AutoInputs, AutoResult, find_effort
    from quantry.targets import find_target

    effort, target = find_effort(arguments.effort), None if arguments.target is None else find_target(arguments.target)
    if options is None:
        warn_of_default_pixels(model, data)
    store = None if arguments.store == "none" else arguments.store
    inputs = AutoInputs(model, data, arguments.evaluation_data, options, store, arguments.verify)
    result = _run(inputs, recipe, target, effort, arguments)
    useless = useless_because(result)
    is_written = useless is None or arguments.force
    written = result.save(file) if is_written else ()
    if arguments.report is not None:
        from quantry.report import write_report

        written = (*written, write_report(result, arguments.report, model.name, decoder=arguments.decoder))
    is_timed = arguments.latency and arguments.evaluate
    slow = _slow_because(result, arguments.target, arguments.latency) if is_timed else None
    slow_note = (Note.of("{reason}", NoteKind.IMPORTANT, reason=slow),) if slow else ()
    notes = (*slow_note, *recipe_notes, *image_notes(data, options))
    compared_on = str(
        arguments.evaluation_data or ("the calibration samples" if data is not None else "random samples")
    )
    advice = _next_command(model, written[0], data, images) if is_written else ""
    summary = Summary(result, written, arguments.evaluate, notes, compared_on, useless, advice)
    out = current_output()
    if warning := slow or (result.auto.slow_because if isinstance(result, AutoResult) else None):
        out.answer.print(f"[bold yellow]{escape(warning)}[/]", soft_wrap=True)
    show(out, summary)
    out.result(quantize_result(model, summary), ExitCode.GOOD if is_written else ExitCode.NOT_GOOD_ENOUGH)


def _resolved(name: str, arguments: QuantizeArguments) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return a recipe and notes on it before any work, so that a misspelt one is reported at once; None is auto."""
    if name.lower() == _AUTO:
        return None, ()
    recipe, notes = resolve_recipe(name)
    return arguments.changed(recipe), notes


def _run(
    inputs: "AutoInputs", recipe: Recipe | None, target: "Target | None", effort: "Effort", arguments: QuantizeArguments
) -> "QuantizationResult":
    """Quantize with a recipe, or with the one that auto finds."""
    from quantry.auto import quantize_auto, require_auto
    from quantry.quantization import quantize as quantize_with
    from quantry.targets import default_target

    if recipe is None:
        return quantize_auto(inputs, target or default_target(), effort, arguments.changed)
    require_auto(effort)
    settings = {name: getattr(inputs, name) for name in ("evaluation_data", "images", "store", "verify")}
    return quantize_with(inputs.model, inputs.data, recipe, target=target, **settings)


def _next_command(model: Path, written: Path, data: Path | None, images: ExplainedImageArguments) -> str:
    """Return what to do with a quantized model: only labels show what it is worth in use."""
    data_words = [] if data is None else ["--data", str(data)]
    words = ["quantry", "evaluate", str(written), "--float", str(model), *data_words, *images.words()]
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


def with_sizes(recipe: Recipe, batch: int | None, dimensions: Iterable[str]) -> Recipe:
    """Return the recipe with sizes of dynamic axes.

    Args:
        recipe: The recipe.
        batch: Size of the first axis of the inputs; None keeps the recipe's.
        dimensions: Further sizes, each as ``NAME=SIZE``.

    Raises:
        RecipeError: A size is not a positive number.
    """
    sizes = list(recipe.prepare.dimensions)
    for dimension in dimensions:
        name, _, size = dimension.partition("=")
        if not name or not size.isdigit():
            raise RecipeError(f"--dimension must be NAME=SIZE, such as height=224, got {dimension!r}")
        sizes.append(Dimension(name, int(size)))
    batch = recipe.prepare.batch if batch is None else batch
    return replace(recipe, prepare=replace(recipe.prepare, batch=batch, dimensions=tuple(sizes)))


def _file_name(recipe_name: str) -> str:
    """Return a file name for a recipe's name, which may contain any characters."""
    return re.sub(r'[\\/:*?"<>|\x00-\x1f]+', "-", recipe_name)
