"""`quantry.search` and `run_search`: set up a search, run it, and return its result."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantry.autosearch.context import SearchContext, SearchInputs, open_context, search_identity
from quantry.autosearch.data_split import require_data, split_data, undivided, write_calibration_list
from quantry.autosearch.default_space import default_space, named_space
from quantry.autosearch.evaluator import Direction, EvaluatorAdapter, Score
from quantry.autosearch.options import SearchOptions, split_options, unknown_option
from quantry.autosearch.output import LiveTable, LogFile, ProgressLog, SearchCallback, SummaryFile, shortfall
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import Proposer, make_proposer
from quantry.autosearch.racing import FEW_SAMPLES, RacingLoop, rungs
from quantry.autosearch.samplers import check_sampler
from quantry.autosearch.scheduler import ALL_TRIED, Scheduler, SearchLoop
from quantry.autosearch.space import AnySpace, Space, SpaceUnion, spaces_of
from quantry.autosearch.state import SearchState
from quantry.autosearch.study import StudySession
from quantry.autosearch.trial import FLOAT_MODEL, Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.autosearch.workers import Workers, start_workers
from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data, pixel_notes
from quantry.data.sample_cache import SampleCache
from quantry.errors import RecipeError, StageError, StoreError
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.memo import Store
from quantry.recipe import Recipe, resolve_recipe

DEFAULT_METRIC = "l2"
"""The metric without an evaluator: mean squared difference between the outputs of the float and the quantized model."""

_ARGUMENTS = ("model", "data", "evaluator", "space", "recipe", "evaluation_data", "images", "store")


@dataclass(frozen=True)
class SearchResult:
    """The best model, and everything that was tried.

    Attributes:
        best: The best complete trial, within tolerance or not; None if all failed.
        candidates: The trials within tolerance, in the order of their numbers.
        trials: All trials, in the order of their numbers.
        pareto: The Pareto front of the objectives, best accuracy first.
        reference: The float model's score.
        direction: Whether the score is maximized or minimized.
        tolerance: The largest accepted drop, in the unit of the score; None if every complete trial is accepted.
        stopped_by: Why the search ended.
        notes: What the user should know: what was removed from the space and why, and how far the best is from the
            tolerance.
        output_dir: Where the files are.
        best_model: The best model on disk, or None.
        best_recipe: Its recipe on disk, which ``quantry quantize --recipe`` runs, or None.
        seconds: Duration of the whole search, including the time before an interruption.
        evaluation_share: Samples evaluated, divided by those of evaluating every trial in full; None if the evaluator
            has no per-sample scores.
        model: The float model's file name, or empty.
        metric: Name of the score.
        objectives: Names of the objectives.
        recorded_at: Seconds since the start at which trials were recorded, by number.
    """

    best: Trial | None
    candidates: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    pareto: tuple[Trial, ...]
    reference: Score
    direction: Direction
    tolerance: float | None
    stopped_by: str
    notes: tuple[str, ...]
    output_dir: Path
    best_model: Path | None
    best_recipe: Path | None
    seconds: float
    evaluation_share: float | None = None
    model: str = ""
    metric: str = "score"
    objectives: tuple[str, ...] = ("accuracy",)
    recorded_at: Mapping[int, float] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        best = "none" if self.best is None else f"trial {self.best.number} with {self.best.score:.6g}"
        return f"SearchResult({len(self.trials)} trials, {len(self.candidates)} candidates, best {best})"


def search(  # noqa: PLR0913  one keyword for each thing a user brings
    model: Any,
    data: Any = None,
    evaluator: Any = None,
    space: AnySpace | Mapping[str, Any] | str | None = None,
    *,
    recipe: Recipe | str | Path | Mapping[str, Any] = "S8S8_AAWS",
    evaluation_data: Any = None,
    images: ImageOptions | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    **options: Any,
) -> SearchResult:
    """Find the recipe whose quantized model is best.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes. None is allowed only with an evaluator and
            recipes that need no calibration. Without an evaluator, half of the samples are held out for evaluation.
        evaluator: A function from a model path to a score that is maximized; an evaluator object, such as one of
            `quantry.evaluate.tasks`; or the name of a metric between the outputs of both models, such as "cosine".
            None is "l2".
        space: A `Space`, a `SpaceUnion`, or a mapping from dotted paths of the recipe to lists of values; or a name:
            "calibration" (the default) tries calibration methods with and without equalization, "accuracy" adds
            SmoothQuant, ranges compared after the following function, bias correction and GPTQ.
        recipe: The base recipe of the space: a `Recipe`, the name of a preset, a file, or plain data.
        evaluation_data: Data for metrics between outputs; None holds out half of ``data``.
        images: How image files become inputs.
        store: Where results of stages go; None is a folder in the output directory.
        **options: Fields of `SearchOptions`, such as ``budget="30min"``, ``tolerance="1%"``, ``n_trials=20``,
            ``n_jobs=2``, ``racing=True`` or ``objectives=("accuracy", "latency")``.

    Returns:
        The best trial and all others. The model, its recipe, the log and search.json are in the output directory. The
        same call resumes an interrupted search.

    Raises:
        UserError: Something given cannot be used; the message says why.

    Example:
        ::

            found = quantry.search("model.onnx", "images/", my_top1, budget="30min", tolerance="1%")
            found.best.score, found.best_model, found.best_recipe
    """
    known, unknown = split_options(options)
    for name in unknown:
        raise unknown_option("search", name, _ARGUMENTS)
    chosen = SearchOptions(**known)
    searched = _space(space, recipe)
    data = require_data(data, evaluator, searched)
    path = _model_path(model, chosen.output_dir)
    calibration = calibration_data(data, input_signatures(model_source(path).load()), images)
    if evaluator is None or isinstance(evaluator, str):
        calibration, evaluation = _evaluation_data(calibration, evaluation_data, images)
        evaluator = OutputDistance(path, SampleCache(evaluation), evaluator or DEFAULT_METRIC)
    return run_search(path, calibration, evaluator, searched, chosen, store)


def _model_path(model: Any, directory: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    path = OutputDirectory(directory).float_model
    directory.mkdir(parents=True, exist_ok=True)
    write_model(model_source(model).load(), path)
    return path


def _evaluation_data(
    given: CalibrationData, evaluation: Any, images: ImageOptions | None
) -> tuple[CalibrationData, CalibrationData]:
    """Return calibration data and evaluation data."""
    return split_data(given) if evaluation is None else (given, calibration_data(evaluation, given.inputs, images))


def _space(space: AnySpace | Mapping[str, Any] | str | None, recipe: Any) -> AnySpace:
    if isinstance(space, Space | SpaceUnion):
        return space
    base, _ = resolve_recipe(recipe)
    if space is None:
        return default_space(base)
    if isinstance(space, str):
        return named_space(space, base)
    if not isinstance(space, Mapping):
        raise RecipeError(f"space must be a Space, a SpaceUnion, a mapping of paths to values or a name, got {space!r}")
    return Space.of(base, space)


def run_search(
    model: Any,
    data: Any,
    evaluator: Any,
    space: AnySpace,
    options: SearchOptions | None = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> SearchResult:
    """Search a space for the recipe whose model gets the best score.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes.
        evaluator: Scores a model file; see `Evaluator`. A plain function of the path is maximized.
        space: What may be tried.
        options: How to search; None takes the defaults.
        store: Where results of stages go; None is a folder in the output directory.

    Returns:
        The best trial and all others, which are also on disk.

    Raises:
        UserError: Something given cannot be used.
        StoreError: The disk is full; existing results stay, and the same call resumes.
    """
    chosen = options or SearchOptions()
    check_sampler(chosen.sampler)
    adapter = EvaluatorAdapter.of(evaluator)
    spaces = spaces_of(space)
    directory = OutputDirectory(chosen.output_dir)
    with closing(directory):
        directory.open()
        context = open_context(SearchInputs(model, data, adapter, store), spaces, chosen, directory)
        of_data = _pixel_notes(context)
        directory.study = search_identity(context, spaces, chosen)
        directions: list[Direction] = [adapter.direction, *["minimize"] * (len(chosen.objectives) - 1)]  # type: ignore[list-item]
        # Before the files of an earlier search are moved: errors in the evaluation data are raised here.
        adapter.prepare(context.float_path)
        with closing(StudySession(directory, directions, spaces, chosen.storage)) as session:
            with closing(start_workers(context, chosen)) as workers:
                if session.study.reference is not None:
                    session.check_reference(_float_score(workers))
                write_calibration_list(directory, context.data)
                state = SearchState(chosen, directory, session.study, adapter.direction)
                state.model_name, state.metric = context.float_path.name, adapter.name
                known = state.study.restore()
                proposer, notes = make_proposer(state, known)
                notes = (*of_data, *session.notes, *notes, *_racing_notes(context, chosen))
                state.expected = proposer.recipes
                state.resumed = bool(known)
                state.restored = frozenset(trial.number for trial in known if trial.is_finished)
                with _reported(state, [*_description(context, chosen), *notes]):
                    _run_trials(state, proposer, Scheduler(state, workers), known, len(context.sample_order))
            if state.best is not None and not directory.best_model.exists():
                # Its trial ran on another machine, or the file was deleted.
                TrialRunner(context).write_model(state.best.recipe, directory.best_model)
            if state.best is not None:
                notes = (*notes, *adapter.notes(directory.best_model))
        return _result(state, notes, len(context.sample_order))


def _pixel_notes(context: SearchContext) -> tuple[str, ...]:
    """Return notes on how pixels become inputs, and warn: a search on wrong inputs may take hours before it ends."""
    notes = pixel_notes(undivided(context.data))
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    return notes


def _float_score(workers: Workers) -> Score:
    workers.submit(Trial(FLOAT_MODEL, Recipe()), None, KnownModels())
    trial = workers.wait()
    if trial.score is None:
        raise StageError(f"the evaluator must be able to score the float model; it raised {trial.error}")
    return Score(trial.score, trial.interval, named=trial.scores)


def _run_trials(
    state: SearchState, proposer: Proposer, scheduler: Scheduler, known: Sequence[Trial], size: int
) -> None:
    """Run trials until there is a reason to stop."""
    try:
        if state.options.racing and size:
            state.stopped_by = RacingLoop(state, proposer, scheduler, known, size).run()
        else:
            state.stopped_by = SearchLoop(state, proposer, scheduler, known).run()
        state.write_best()
        if state.stopped_by == ALL_TRIED:
            # Only here: a search that reached a limit may be resumed, and must then draw as if it had not stopped.
            state.study.tell_sampler()
    except BaseException:
        scheduler.forget_running()
        raise


@contextmanager
def _reported(state: SearchState, lines: list[str]) -> Iterator[None]:
    """Report to the log, search.json, the logger and the terminal."""
    callbacks: list[SearchCallback] = [LogFile(state.options.log_file), SummaryFile(), ProgressLog(), LiveTable()]
    state.callbacks = callbacks
    for callback in callbacks:
        callback.on_start(state, lines)
    reason = None
    try:
        yield
        reason = state.stopped_by
    except BaseException as error:
        reason = _interruption(state, error)
        raise
    finally:
        # Reversed: the terminal's table must end even if the disk is full.
        for callback in reversed(callbacks):
            with suppress(StoreError):
                callback.on_end(state, reason or "unknown")


def _racing_notes(context: SearchContext, options: SearchOptions) -> tuple[str, ...]:
    """Return a note if a race has few samples."""
    size = len(context.sample_order)
    if not options.racing or not rungs(FEW_SAMPLES)[0] < size < FEW_SAMPLES:
        return ()
    note = (
        f"racing on {size} samples gives rough estimates: scores marked ~ are from as few as {rungs(size)[0]} samples "
        "and may be far from those on all; without racing every trial is evaluated in full"
    )
    return (note,)


def _interruption(state: SearchState, error: BaseException) -> str:
    """Return the last line of the log of a search that was interrupted."""
    why = "" if isinstance(error, KeyboardInterrupt) else f" by {type(error).__name__} {error}".rstrip()
    best = state.best
    found = "no trial is finished" if best is None else f"best so far: trial {best.number} with score {best.score:.6g}"
    where = "" if best is None else f", {state.directory.best_model}"
    return f"interrupted{why}; {found}{where}; run it again in the same way to resume"


def _description(context: SearchContext, options: SearchOptions) -> Iterator[str]:
    yield f"model {context.float_path}, {context.data.size or 'unknown number of'} calibration samples"
    yield f"evaluator {context.evaluator.identity}"
    limits = {name: getattr(options, name) for name in ("n_trials", "budget", "n_candidates", "patience")}
    given = ", ".join(f"{name} {value:g}" for name, value in limits.items() if value is not None) or "no limits"
    tolerance = "everything is accepted" if options.tolerance is None else f"tolerance {options.tolerance}"
    yield f"sampler {options.sampler}, seed {options.seed}, {options.n_jobs} worker(s), {tolerance}, {given}"
    if options.racing and not len(context.sample_order):
        yield "racing is off: the evaluator has no per_sample, so every trial is evaluated in full"
    elif options.racing:
        yield f"racing over {', '.join(map(str, rungs(len(context.sample_order))))} samples"


def _result(state: SearchState, notes: tuple[str, ...], size: int) -> SearchResult:
    """Return the result of a search.

    Args:
        state: The state of the search.
        notes: What was noted before it started.
        size: Number of samples of an evaluation; 0 if there are no per-sample scores.
    """
    assert state.reference is not None
    assert state.stopped_by is not None
    directory = state.directory
    return SearchResult(
        best=None if state.best is None else state.trials[state.best.number],
        candidates=state.candidates,
        trials=tuple(state.trials),
        pareto=tuple(state.trials[trial.number] for trial in state.pareto),
        reference=state.reference,
        direction=state.direction,
        tolerance=state.tolerance,
        stopped_by=state.stopped_by,
        notes=(*notes, *shortfall(state)),
        output_dir=directory.path,
        best_model=None if state.best is None else directory.best_model,
        best_recipe=None if state.best is None else directory.best_recipe,
        seconds=state.seconds,
        evaluation_share=_evaluation_share(state, size),
        model=state.model_name,
        metric=state.metric,
        objectives=tuple(state.options.objectives),
        recorded_at=dict(state.recorded_at),
    )


def _evaluation_share(state: SearchState, size: int) -> float | None:
    evaluated = [trial for trial in state.trials if trial.state != "failed"]
    if not size or not evaluated:
        return None
    seen = sum((trial.samples or size) for trial in evaluated if trial.same_as is None)
    return seen / (size * len(evaluated))
