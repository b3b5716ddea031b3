"""`quantize` with the recipe `auto`, the default: finds the recipe by itself, without labels."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from quantry.auto.candidates import Candidate, plain, recommended
from quantry.auto.effort import Effort, find_effort
from quantry.auto.recipe_search import AutoReport, NothingWorksError, RecipeSearch
from quantry.auto.speed import SpeedCheck
from quantry.auto.summary import summary_lines
from quantry.auto.trials import HeldOutTrials, TrialInputs
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data, pixel_notes
from quantry.errors import RecipeError, known_keywords
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.memo import Memo, MemoryStore, Store
from quantry.mix import Score
from quantry.notes import Note, NoteKind
from quantry.pipeline import calibration_samples, run_prepare
from quantry.quantization import DEFAULT_STORE, QuantizationResult, open_store, with_sizes_of_samples
from quantry.quantization import quantize as quantize_with
from quantry.recipe import Recipe
from quantry.targets import Target, default_target, find_target

AUTO = "auto"
"""The name of the default recipe."""

_NO_DATA = Note.of(
    "auto needs calibration data to compare recipes; without any, the plain preset of the target is used"
)

RECOMMENDED, SIMPLE = "the recommended recipe", "the plain preset"
"""Labels of the recipes that `auto` starts from."""

# Names from other tools, for "did you mean" hints only.
_OTHER_NAMES = {
    "preset": "recipe",
    "config": "recipe",
    "quant_config": "recipe",
    "model_input": "model",
    "calibration_data": "data",
    "calibration_data_reader": "data",
    "reader": "data",
    "cache": "store",
}


@dataclass(frozen=True)
class AutoResult(QuantizationResult):
    """A quantized model whose recipe was found by `auto`.

    Attributes:
        auto: What was tried, with the gain of each step, and what further gain would need.
    """

    auto: AutoReport = field(kw_only=True, repr=False)


@known_keywords("quantize", _OTHER_NAMES)
def quantize(  # noqa: PLR0913  one keyword for each input of the user
    model: Any,
    data: Any = None,
    recipe: Recipe | str | Path | Mapping[str, Any] | None = AUTO,
    *,
    target: Target | str | None = None,
    effort: Effort | str = "default",
    evaluation_data: Any = None,
    images: ImageOptions | None = None,
    score: Score | None = None,
    store: Store | str | os.PathLike[str] | None = DEFAULT_STORE,
    verify: bool = True,
) -> QuantizationResult:
    """Quantize a float ONNX model.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data: an onnxruntime data reader, an iterable or a sequence of dicts or arrays, a folder of
            images, ``.npy`` or ``.npz`` files, a torch DataLoader. None is fine if no scale has to be found in data;
            otherwise random data is used, with a warning.
        recipe: "auto" or None, which finds a recipe for the target without labels; a `Recipe`, the name of a preset,
            the path of a recipe file, or plain data.
        target: The deployment target: its name, the path of its file, or a `Target`. The recipe is adapted to its
            rules. None takes the recipe's own target, if it has one, and "ort-cpu" for "auto".
        effort: How long "auto" may search: "low", "default" (about a minute of CPU time) or "high".
        evaluation_data: Data for ``result.evaluation``, in any of the same forms; None uses the calibration data.
        images: How image files become inputs. By default a folder of images is read as RGB 0..255, and the first note
            says so.
        score: A function from the model's outputs for all calibration samples (one array for each output, with the
            samples along its first axis) to a number, higher is better; for mixed precision with the goal `WithinDrop`.
        store: Where results are stored: "default" for the user's cache directory, a directory, a store, or None to
            store nothing.
        verify: Whether ``save`` and ``to_bytes`` check that onnxruntime and onnx's checker accept the written model,
            wherever they accept the float model. It costs one session; False is for huge models.

    Returns:
        The result; an `AutoResult` with what was tried if "auto" found the recipe. Only the store is written to disk
        until the result is saved.

    Raises:
        UserError: The model, the data or the recipe is invalid, or not for the target; the message says why.

    Example:
        >>> result = quantry.quantize("model.onnx", data=reader, target="vitisai")  # doctest: +SKIP
        >>> result.save("model.int8.onnx")  # doctest: +SKIP
    """
    given = AutoInputs(model, data, evaluation_data, images, store, verify)
    if recipe is None or is_auto(recipe):
        if score is not None:
            raise RecipeError(
                "score must come with a recipe whose goal is WithinDrop, got the recipe 'auto'; in quantize"
            )
        chosen = default_target() if target is None else find_target(target)
        return quantize_auto(given, chosen, find_effort(effort))
    require_auto(find_effort(effort))
    return quantize_with(
        model,
        data,
        recipe,
        target=target,
        evaluation_data=evaluation_data,
        images=images,
        score=score,
        store=store,
        verify=verify,
    )


def is_auto(recipe: object) -> bool:
    """Return whether a user asked for the recipe "auto"."""
    return isinstance(recipe, str) and recipe.lower() == AUTO


def require_auto(effort: Effort) -> None:
    """Check the effort of a call with a recipe of the user's, which leaves nothing to search.

    Raises:
        RecipeError: It is not the default.
    """
    if effort != find_effort("default"):
        raise RecipeError(f"effort must come with the recipe 'auto', got {effort.name!r} with another recipe")


@dataclass(frozen=True)
class AutoInputs:
    """What the user gave, in any of the accepted forms; see `quantize`.

    Attributes:
        model: The float model.
        data: Calibration data.
        evaluation_data: Data of the comparison with the float model.
        images: How image files become inputs.
        store: Where results are stored.
        verify: Whether the written model is checked.
    """

    model: Any
    data: Any = None
    evaluation_data: Any = None
    images: ImageOptions | None = None
    store: Store | str | os.PathLike[str] | None = DEFAULT_STORE
    verify: bool = True


def quantize_auto(
    given: AutoInputs, target: Target, effort: Effort, adjust: Callable[[Recipe], Recipe] = lambda recipe: recipe
) -> QuantizationResult:
    """Find a recipe for a target and quantize with it, on all samples.

    Args:
        given: What the user gave.
        target: The deployment target.
        effort: How much work is allowed.
        adjust: Applied to every recipe before it is tried, such as the user's exclusions.

    Returns:
        The result.

    Raises:
        UserError: The model or the data is invalid.
    """
    started = time.perf_counter()
    simple = replace(target.adapted(adjust(plain(target))), name=AUTO)
    if given.data is None:
        result = _final(given, simple, given.data)
        return replace(result, _notes=(*result._notes, _NO_DATA))
    best = target.adapted(adjust(recommended(target)))
    with trial_inputs(given, best) as inputs, tempfile.TemporaryDirectory() as folder:
        prepared = run_prepare(inputs.source, best, Memo(inputs.store)).value
        simple, best = (with_sizes_of_samples(one, target, prepared, inputs.data) for one in (simple, best))
        prepared = run_prepare(inputs.source, best, Memo(inputs.store)).value
        target.require_fitting(prepared)
        trials = HeldOutTrials(inputs, effort, Path(folder))
        speed = SpeedCheck.of(inputs.source, target, trials.fit, inputs.store)
        search = RecipeSearch(trials, target, speed)
        start, other = Candidate.whole(RECOMMENDED, best), Candidate.whole(SIMPLE, simple)
        try:
            report = search.run(start, other)
        except NothingWorksError:
            # Quantizing again raises the error itself, which says what the user can change.
            return _final(given, simple, given.data)
        return with_report(given, report, trials, started)


def with_report(given: AutoInputs, report: AutoReport, trials: HeldOutTrials, started: float) -> AutoResult:
    """Quantize with the recipe that was found, and measure the result on samples that chose nothing.

    Args:
        given: What the user gave.
        report: What was found.
        trials: The trials.
        started: When the user started to wait, in seconds of `time.perf_counter`.
    """
    inputs = trials.inputs
    # Opened before: image options of the user's are for files, not for opened data.
    compared = inputs.evaluation or trials.reported or inputs.data
    opened = replace(given, evaluation_data=compared, images=None, store=inputs.store)
    result = _final(opened, replace(report.recipe, name=AUTO), trials.final)
    reported = trials.measured_on_reported(result)
    report = replace(report, reported=reported, seconds=time.perf_counter() - started)
    values = {part.name: getattr(result, part.name) for part in fields(QuantizationResult) if part.init}
    slow = (Note.of("{reason}", NoteKind.IMPORTANT, reason=report.slow_because),) if report.slow_because else ()
    # A subset does not know that it came from image files.
    pixels = () if trials.final is inputs.data else pixel_notes(inputs.data)
    summary = (Note.of("{line}", line=line) for line in summary_lines(report))
    notes = (*slow, *pixels, *values["_notes"], *summary)
    return AutoResult(**{**values, "_notes": notes}, auto=report)


class trial_inputs:  # noqa: N801 - used as a function, in a with statement
    """Open the model, the data and the store for trials; a temporary file of the model is removed at the end.

    Args:
        given: What the user gave.
        recipe: A recipe of the trials.
    """

    def __init__(self, given: AutoInputs, recipe: Recipe) -> None:
        self._given = given
        self._recipe = recipe
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> TrialInputs:
        given = self._given
        source = model_source(given.model)
        store = open_store(given.store) or MemoryStore()
        # A recipe may fix sizes of inputs, so samples are checked against the prepared model.
        prepared = run_prepare(source, self._recipe, Memo(store)).value
        data = calibration_samples(calibration_data(given.data, prepared.inputs, given.images), self._recipe)
        evaluation = None
        if given.evaluation_data is not None:
            evaluation = calibration_data(given.evaluation_data, prepared.inputs, given.images)
        if isinstance(given.model, str | os.PathLike):
            path = Path(given.model)
        else:
            self._folder = tempfile.TemporaryDirectory()
            path = Path(self._folder.name) / "float.onnx"
            write_model(source.load(), path)
        return TrialInputs(source, path, data, store, evaluation)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _final(given: AutoInputs, recipe: Recipe, data: Any) -> QuantizationResult:
    return quantize_with(
        given.model,
        data,
        recipe,
        evaluation_data=given.evaluation_data,
        images=given.images,
        store=given.store,
        verify=given.verify,
    )
