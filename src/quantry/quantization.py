"""The native API: one float model in, one quantized model out."""

import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data, pixel_doubts, pixel_notes
from quantry.data.random_data import RandomData, random_sample
from quantry.errors import (
    DataError,
    InternalError,
    ModelError,
    QuantryError,
    RecipeError,
    StageError,
)
from quantry.evaluate import (
    UNITS,
    Evaluation,
    GuardReport,
    arithmetic_in_force,
    bytes_text,
    find_metric,
    quality,
    score_texts,
    size_text,
)
from quantry.graph.float_model import FloatModel, input_signatures
from quantry.graph.load import ModelSource, model_source
from quantry.graph.quant_plan import DeclinedNode, QuantPlan
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import Digest, DirectoryStore, Handle, Memo, Store, Trace, fingerprint
from quantry.mix import Score, check_goal
from quantry.notebook import html_details, html_table
from quantry.notes import Note, NoteKind
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import Statistics
from quantry.pipeline import (
    DataLike,
    Stages,
    calibration_samples,
    follow_names,
    run_evaluate,
    run_evaluation_statistics,
    run_guard,
    run_prepare,
    run_quantize,
)
from quantry.recipe import Dimension, Recipe, resolve_recipe
from quantry.recipe.checked import brief
from quantry.runtime.acceptance import check_written, reason_to_refuse
from quantry.targets import Target, find_target

_LOG = logging.getLogger("quantry")
DEFAULT_STORE = "default"
"""The name of the store in the user's cache directory."""

_NO_DATA = Note.of(
    "no calibration data were given: ranges come from one random sample, uniform in [0, 1), so the model is not usable "
    "and its metrics are meaningless; pass --data, or data=",
    NoteKind.NO_DATA,
)
_RANDOM_EVALUATION = Note.of(
    "no data were given, and this recipe needs none; the comparison with the float model uses one random sample, "
    "uniform in [0, 1), and is only a rough check"
)


_SIZED_SAMPLES = 8
"""Samples whose sizes are compared before dynamic axes are fixed to them."""


def with_sizes_of_samples(recipe: Recipe, target: Target, model: FloatModel, data: CalibrationData) -> Recipe:
    """Return a recipe that fixes dynamic axes to the size that all samples have, if the target needs static shapes.

    Args:
        recipe: The recipe.
        target: The target.
        model: The model that it prepares.
        data: The samples.
    """
    if not any(target.refusals(model)):
        return recipe
    found: dict[str, set[int]] = {}
    for sample in data.take(_SIZED_SAMPLES):
        for signature in model.inputs:
            for name, size in zip(signature.shape, sample[signature.name].shape, strict=False):
                if isinstance(name, str):
                    found.setdefault(name, set()).add(size)
    known = {axis.name for axis in recipe.prepare.dimensions}
    sizes = [Dimension(name, *seen) for name, seen in found.items() if len(seen) == 1 and name not in known]
    dimensions = (*recipe.prepare.dimensions, *sizes)
    return replace(recipe, prepare=replace(recipe.prepare, dimensions=dimensions))


@dataclass(frozen=True)
class Inputs:
    """The data of a result.

    Attributes:
        calibration: The samples it was calibrated with; None if they were random or not needed.
        evaluation: The samples it is compared on.
    """

    calibration: DataLike | None
    evaluation: DataLike


@dataclass(frozen=True)
class QuantizationResult:
    """A quantized model and everything known about it.

    Attributes:
        recipe: The recipe it was quantized with.
        stages: Handles for the results of all stages.
        trace: Which stages ran and which were reused; `evaluation` adds to it.
        float_file: The float model's file; None if it was given in memory.
    """

    recipe: Recipe
    stages: Stages
    trace: Trace
    _notes: tuple[Note, ...] = field(repr=False)
    _memo: Memo = field(repr=False)
    _data: Inputs = field(repr=False)
    float_file: Path | None = field(default=None, repr=False)
    _verified_against: ModelSource | None = field(default=None, repr=False)
    _comparisons: dict[tuple[object, Digest], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"QuantizationResult({self.recipe.name!r}, {len(self._notes)} notes, {self.trace!r})"

    @property
    def guard(self) -> GuardReport | None:
        """A cheap comparison with the float model on a few calibration samples; runs both models on first use.

        None if it is switched off (``evaluate.guard`` of the recipe is 0) or nothing was calibrated.
        """
        if self._data.calibration is None:
            return None
        report: GuardReport | None = self._comparison(run_guard, self._data.calibration)
        return report

    def _comparison(self, run: Callable[..., Handle[Any] | None], data: DataLike) -> Any:
        """Compare with the float model in the arithmetic in force; each comparison is made once."""
        arithmetic = arithmetic_in_force()
        key = (run, fingerprint(arithmetic))
        if key not in self._comparisons:
            handle = run(self.stages, data, self.recipe, self._memo, arithmetic)
            self._comparisons[key] = None if handle is None else handle.value
        return self._comparisons[key]

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user should know; the first one warns if the result is broken. ``str(note)`` is the text."""
        alarm = () if self.guard is None else self.guard.notes
        return (*alarm, *self._notes)

    def _repr_html_(self) -> str:
        """Return what a notebook shows; metrics appear once `evaluation` was read, which runs both models."""
        plan = self.plan
        rows: list[tuple[str, str]] = [
            ("nodes", f"{len(plan.all_quantized)} quantized, {len(plan.all_declined)} float"),
            ("tensors", f"{len(plan.activations)} activations, {len(plan.weights)} weights, {len(plan.biases)} biases"),
        ]
        if any(run is run_evaluate for run, _ in self._comparisons):
            evaluation = self.evaluation
            scores = {name: score_texts(score.value, score.interval) for name, score in evaluation.metrics.items()}
            if "sqnr" in evaluation.metrics:
                rows.insert(0, ("quality", str(quality(evaluation.metrics["sqnr"].value))))
            rows += [
                (name, f"{value} {UNITS.get(name, '')}, 95 % interval {interval}")
                for name, (value, interval) in scores.items()
            ]
            before, after = evaluation.float_bytes, evaluation.quantized_bytes
            rows.append(("size", f"{bytes_text(after)}, {size_text(before, after)} than the float model"))
        else:
            rows.append(("metrics", "read .evaluation to compare with the float model"))
        table = html_table(("", ""), rows, f"Quantized with {self.recipe.name}")
        return table + html_details(f"{len(self.notes)} notes", "\n".join(map(str, self.notes)))

    @property
    def quantized(self) -> QuantizedModel:
        """The quantized model as a value."""
        return self.stages.quantized.value

    @property
    def model(self) -> ir.Model:
        """The quantized graph; clone it before editing."""
        return self.quantized.model

    @property
    def plan(self) -> QuantPlan:
        """Which tensors are quantized, to what."""
        return self.stages.plan.value

    @property
    def params(self) -> QuantParams:
        """Scales and zero points."""
        return self.stages.params.value

    @property
    def declined(self) -> tuple[DeclinedNode, ...]:
        """Nodes that stayed float, each with its reason."""
        return self.plan.declined

    @cached_property
    def saved_to(self) -> Path | None:
        """The file that `save` wrote last; None before."""
        return None

    @property
    def evaluation(self) -> Evaluation:
        """Comparison with the float model; runs both models on first use.

        Uses ``evaluation_data`` if it was given, else the calibration data, and the arithmetic of the block of
        `quantry.targets.on_target` or the like around the caller.
        """
        evaluation: Evaluation = self._comparison(run_evaluate, self._data.evaluation)
        return evaluation

    @property
    def evaluation_data(self) -> CalibrationData:
        """The data that `evaluation` uses."""
        data = self._data.evaluation
        return data if isinstance(data, CalibrationData) else data()

    @property
    def calibration_data(self) -> CalibrationData | None:
        """The data that ranges were found in; None if none were given or needed."""
        data = self._data.calibration
        return data if data is None or isinstance(data, CalibrationData) else data()

    @property
    def evaluation_statistics(self) -> Statistics | None:
        """Statistics of some evaluation data; None if these are the calibration data, or nothing was calibrated."""
        if self.stages.statistics is None or self._data.evaluation is self._data.calibration:
            return None
        return run_evaluation_statistics(self.stages, self._data.evaluation, self.recipe, self._memo).value

    def to_bytes(self) -> bytes:
        """Return the quantized ONNX file's bytes, after checking that onnxruntime loads them.

        Raises:
            InternalError: onnxruntime or onnx's checker refuses them.
        """
        content = self.quantized.to_bytes()
        self._verify(content)
        return content

    def save(self, path: str | Path, *, overwrite: bool = False) -> tuple[Path, ...]:
        """Write the quantized model, atomically.

        Args:
            path: The file; weights of models over 1.5 GB go to a second file next to it.
            overwrite: Whether the file may be the float model's, which is then lost.

        Returns:
            The files written.

        Raises:
            RecipeError: The path is the float model's, and ``overwrite`` is False.
            InternalError: onnxruntime or onnx's checker refuses what was written; the files are removed.
        """
        target, source = Path(path), self.float_file
        is_source = source is not None and source.exists() and target.exists() and target.samefile(source)
        if is_source and not overwrite:
            raise RecipeError(f"save must not overwrite the float model, got its path {target}; choose another")
        if is_source:
            # The check reads the float model, and if it fails the float model must still be there.
            self._verify(self.quantized.to_bytes())
        files = self.quantized.save(path)
        try:
            self._verify(files[0])
        except QuantryError:
            for file in files:
                file.unlink(missing_ok=True)
            raise
        self.__dict__["saved_to"] = files[0]
        # After the check: a guard can only run a model that loads.
        for note in () if self.guard is None else self.guard.notes:
            _LOG.warning("%s", note)
        return files

    def _verify(self, written: bytes | Path) -> None:
        source = self._verified_against
        # Equal results have equal bytes, so one check is enough.
        if source is not None and not self.__dict__.get("_is_verified"):
            with _blaming(source, lambda: next(iter(self.evaluation_data))):
                check_written(written, source.load)
            self.__dict__["_is_verified"] = True


def quantize(  # noqa: PLR0913  one keyword for each input of the user
    model: Any,
    data: Any,
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    target: Target | str | None = None,
    evaluation_data: Any = None,
    images: ImageOptions | None = None,
    score: Score | None = None,
    store: Store | str | os.PathLike[str] | None = DEFAULT_STORE,
    verify: bool = True,
) -> QuantizationResult:
    """Quantize a float ONNX model with one recipe; `quantry.quantize` can also find the recipe.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes; None is one random sample, if data is needed.
        recipe: A `Recipe`, the name of a preset, the path of a recipe file, or plain data.
        target: The deployment target: its name, the path of its file, or a `Target`. The recipe is adapted to its
            rules. None takes the recipe's own target, if it has one.
        evaluation_data: Data for ``result.evaluation``, in any of the same forms; None uses the calibration data.
        images: How image files become inputs.
        score: A function of the model's outputs, for mixed precision with the goal `WithinDrop`.
        store: Where results are stored; see `open_store`.
        verify: Whether ``save`` and ``to_bytes`` check that onnxruntime and onnx's checker accept the written model,
            wherever they accept the float model. It costs one session; False is for huge models.

    Returns:
        The result. Only the store is written to disk until the result is saved.

    Raises:
        UserError: The model, the data or the recipe is invalid; the message says why.
    """
    wanted, notes = resolve_recipe(recipe)
    deployed, wanted, adapted = _for_target(target, wanted)
    notes = (*notes, *adapted)
    _check_metrics(wanted, score)
    trace = Trace()
    memo = Memo(open_store(store), trace)
    source = model_source(model)
    with _blaming(source):
        prepared = run_prepare(source, wanted, memo)
        inputs = prepared.value.inputs
    wanted, followed = follow_names(source, prepared, wanted)
    for note in followed:
        _LOG.warning("%s", note)
    # Opened once: the data may be an iterator, and opening it spools or hashes every sample.
    calibration = functools.cache(lambda: calibration_samples(calibration_data(data, inputs, images), wanted))
    if deployed is not None:
        if data is not None:
            wanted = with_sizes_of_samples(wanted, deployed, prepared.value, calibration())
            prepared = run_prepare(source, wanted, memo)
        deployed.require_fitting(prepared.value)
    # Validate the data up front, even if no stage will read it.
    of_data = () if data is None else _notes_on_pixels(calibration())
    evaluation: DataLike = calibration if evaluation_data is None else calibration_data(evaluation_data, inputs, images)
    with _blaming(source, lambda: next(iter(calibration())), random=data is None):
        stages = run_quantize(prepared, calibration, wanted, memo, score)
    if data is None and calibration.cache_info().currsize:
        of_data = (_NO_DATA,)
    elif data is None and evaluation_data is None:
        of_data = (_RANDOM_EVALUATION,)
        evaluation = functools.partial(calibration_data, RandomData(), inputs)
    all_notes = (*of_data, *notes, *followed, *stages.notes)
    used = Inputs(None if data is None else calibration, evaluation)
    file = Path(model) if isinstance(model, str | os.PathLike) else None
    return QuantizationResult(
        wanted,
        stages,
        trace,
        all_notes,
        memo,
        used,
        file,
        _verified_against=source if verify else None,
    )


def _for_target(target: Target | str | None, recipe: Recipe) -> tuple[Target | None, Recipe, tuple[Note, ...]]:
    """Return the target, the recipe adapted to it, and notes about what was adapted."""
    wanted = target or recipe.target
    if not wanted:
        return None, recipe, ()
    deployed = find_target(wanted)
    legal = deployed.legalized(recipe)
    changes = [change for change in recipe.diff(legal) if change.path != "target"]
    texts = (f"{change.path} is {brief(change.theirs)}" for change in changes)
    notes = (Note.of("for {target}: {change}", NoteKind.TARGET, target=deployed.name, change=text) for text in texts)
    return deployed, legal, tuple(notes)


@contextmanager
def _blaming(
    source: ModelSource, sample: Callable[[], Mapping[str, Any]] | None = None, *, random: bool = False
) -> Iterator[None]:
    """Raise a `ModelError` for a failure whose reason is that the float model is invalid or cannot run.

    Args:
        source: The float model.
        sample: Returns inputs that the model should run on; random ones if None.
        random: Whether the calibration data is random, so that a failing run is not the fault of the user's data.
    """
    try:
        yield
    except DataError as error:
        if random:
            raise ModelError(f"the model must run on random data of its declared shapes; {error}") from error
        # If random data of the declared shapes fails too, the samples are not to blame.
        model = source.load()
        reason = reason_to_refuse(model, lambda: random_sample(input_signatures(model)))
        if reason is None:
            raise
        raise ModelError(f"the model must be able to run, got: {reason}; in {source.label}") from error
    except (StageError, InternalError) as error:
        model = source.load()
        reason = reason_to_refuse(model, sample or (lambda: random_sample(input_signatures(model))))
        if reason is None:
            raise
        raise ModelError(f"the model must be valid and able to run, got: {reason}; in {source.label}") from error


def _notes_on_pixels(data: CalibrationData) -> tuple[Note, ...]:
    for doubt in pixel_doubts(data):
        warnings.warn(str(doubt), UserWarning, stacklevel=4)
    return pixel_notes(data)


def _check_metrics(recipe: Recipe, score: Score | None) -> None:
    """Check metrics and the goal of mixed precision before any stage runs."""
    for metric in recipe.evaluate.metrics:
        find_metric(metric)
    check_goal(None if recipe.mix.mixed is None else recipe.mix.mixed.goal, score)


def default_store_path() -> Path:
    """Return the directory of the default store: ``$QUANTRY_CACHE``, else a folder in the user's cache directory."""
    configured = os.environ.get("QUANTRY_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantry"


def open_store(store: Store | str | os.PathLike[str] | None) -> Store | None:
    """Return the store that a user named; None if nothing is stored.

    Args:
        store: `DEFAULT_STORE`, a directory, a store or None.

    Raises:
        RecipeError: It is none of these.
    """
    if store == DEFAULT_STORE:
        return _directory_store(default_store_path().absolute())
    if isinstance(store, str | os.PathLike):
        if not os.fspath(store):
            raise RecipeError("store must be a directory, a store, 'default' or None, got an empty path")
        return _directory_store(Path(store).absolute())
    if store is not None and not hasattr(store, "lookup"):
        raise RecipeError(
            f"store must be {DEFAULT_STORE!r}, a directory, a store or None, got {type(store).__name__}; in quantize"
        )
    return store


# One object for each directory: calls on the same store object share the results that are still in memory.
@functools.cache
def _directory_store(path: Path) -> DirectoryStore:
    return DirectoryStore(path)
