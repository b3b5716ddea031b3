"""`run_search`: sets up a search, runs it, and returns its result."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.context import SearchContext, SearchInputs, open_context, search_identity
from quantry.autosearch.control import ControlFile
from quantry.autosearch.data_split import undivided, write_calibration_list
from quantry.autosearch.evaluator import Direction, EvaluatorAdapter, Score
from quantry.autosearch.live_table import LiveTable
from quantry.autosearch.output import LogFile, ProgressLog, SearchCallback, shortfall
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import Proposer, make_proposer
from quantry.autosearch.racing import FEW_SAMPLES, RacingLoop, rungs
from quantry.autosearch.result import SearchResult
from quantry.autosearch.samplers import check_sampler, import_optuna
from quantry.autosearch.scheduler import Scheduler, SearchLoop
from quantry.autosearch.space import AnySpace, example_recipe, spaces_of
from quantry.autosearch.state import SearchState
from quantry.autosearch.stop import ALL_TRIED
from quantry.autosearch.study import StudySession
from quantry.autosearch.summary import SummaryFile
from quantry.autosearch.target_ranking import rank_on_target, reserve_time
from quantry.autosearch.trackers import DashboardStudy, trackers
from quantry.autosearch.trial import FLOAT_MODEL, Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.autosearch.winner import prefer_cheaper
from quantry.autosearch.workers import Workers, start_workers
from quantry.data.open_data import pixel_notes
from quantry.errors import StageError, StoreError
from quantry.memo import Store
from quantry.recipe import Recipe
from quantry.recipe.search_options import SearchOptions


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
    import_optuna()
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
                state, known = _resumed(SearchState(chosen, directory, session.study, adapter.direction))
                state.model_name, state.metric = context.float_path.name, adapter.name
                proposer, notes = make_proposer(state, known)
                of_spaces = [note for space in spaces for note in space.notes]
                notes = (*of_data, *of_spaces, *session.notes, *notes, *_racing_notes(context, chosen))
                state.expected = proposer.recipes
                with _reported(state, [*_description(context, chosen), *notes]):
                    _run_trials(state, proposer, workers, known, context)
            notes = (*notes, *state.reasons)
            if state.best is not None:
                if not directory.best_model.exists():  # its trial ran on another machine, or the file was deleted
                    TrialRunner(context).write_model(state.best.recipe, directory.best_model)
                notes = (*notes, *adapter.notes(directory.best_model))
        return _result(state, notes, context)


def _resumed(state: SearchState) -> tuple[SearchState, list[Trial]]:
    """Return the state with what the study has of an earlier run, and the trials of that run."""
    known = state.study.restore()
    state.resumed = bool(known)
    state.restored = frozenset(trial.number for trial in known if trial.is_finished)
    return state, known


def _pixel_notes(context: SearchContext) -> tuple[str, ...]:
    """Return notes on how pixels become inputs, and warn: a search on wrong inputs may take hours before it ends."""
    notes = tuple(str(note) for note in pixel_notes(undivided(context.data)))
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
    state: SearchState, proposer: Proposer, workers: Workers, known: Sequence[Trial], context: SearchContext
) -> None:
    """Run trials until there is a reason to stop, and choose the best."""
    first = proposer.recipes[0] if proposer.recipes else example_recipe(state.study.spaces)
    workers.prepare(first)
    reserve_time(state, context, context.target or first.target)
    scheduler, size = Scheduler(state, workers), len(context.sample_order)
    try:
        if state.options.racing and size:
            state.stopped_by = RacingLoop(state, proposer, scheduler, known, size).run()
        else:
            state.stopped_by = SearchLoop(state, proposer, scheduler, known).run()
        state.write_best()
        if state.stopped_by == ALL_TRIED and proposer.short_of_time:
            state.stopped_by = state.time.refusal(math.inf) or ALL_TRIED
        if state.stopped_by == ALL_TRIED:
            # Only here: a search that reached a limit may be resumed, and must then draw as if it had not stopped.
            state.study.tell_sampler()
    except BaseException:
        scheduler.forget_running()
        raise
    # Here, because the reports that end next name the best trial.
    state.reasons = rank_on_target(state, context) or prefer_cheaper(state, context)


@contextmanager
def _reported(state: SearchState, lines: list[str]) -> Iterator[None]:
    """Report to the log, search.json, the logger and the terminal."""
    callbacks: list[SearchCallback] = [
        LogFile(state.options.log_file),
        SummaryFile(),
        ProgressLog(),
        LiveTable(),
        DashboardStudy(),
        *trackers(state.options.log_to),
        # Last: while a search is paused, everything about the latest trial is written.
        ControlFile(),
    ]
    state.callbacks = callbacks
    for callback in callbacks:
        callback.on_start(state, lines)
    reason = None
    try:
        yield
        reason = None if state.stopped_by is None else str(state.stopped_by)
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
    evaluated = "" if context.evaluator.size is None else f" on {context.evaluator.size} samples"
    yield f"evaluator {context.evaluator.name}{evaluated}; its score is to be {context.evaluator.direction}d"
    limits = {name: getattr(options, name) for name in ("n_trials", "budget", "n_candidates", "patience")}
    given = ", ".join(f"{name} {value:g}" for name, value in limits.items() if value is not None) or "no limits"
    tolerance = "everything is accepted" if options.tolerance is None else f"tolerance {options.tolerance}"
    yield f"sampler {options.sampler}, seed {options.seed}, {options.n_jobs} worker(s), {tolerance}, {given}"
    if options.racing and not len(context.sample_order):
        yield "racing is off: the evaluator has no per_sample, so every trial is evaluated in full"
    elif options.racing:
        yield f"racing over {', '.join(map(str, rungs(len(context.sample_order))))} samples"


def _result(state: SearchState, notes: tuple[str, ...], context: SearchContext) -> SearchResult:
    """Return the result of a search.

    Args:
        state: The state of the search.
        notes: What was noted before it started.
        context: What all trials share.
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
        evaluation_share=_evaluation_share(state, len(context.sample_order)),
        model=state.model_name,
        metric=state.metric,
        objectives=tuple(state.options.objectives),
        recorded_at=dict(state.recorded_at),
        spaces=tuple(state.study.spaces),
        per_sample=_per_sample(state, context),
    )


def _per_sample(state: SearchState, context: SearchContext) -> dict[int, NDArray[np.float64]]:
    """Return the per-sample scores of complete trials, in the order of the samples instead of that of the race."""
    found = {}
    order = context.sample_order
    for trial in state.trials:
        scores = state.directory.read_scores(trial.number) if trial.state == "complete" else np.zeros(0)
        if len(scores) and (not len(order) or len(scores) == len(order)):
            found[trial.number] = scores[np.argsort(order)] if len(order) else scores
    return found


def _evaluation_share(state: SearchState, size: int) -> float | None:
    evaluated = [trial for trial in state.trials if trial.state != "failed"]
    if not size or not evaluated:
        return None
    seen = sum((trial.samples or size) for trial in evaluated if trial.same_as is None)
    return seen / (size * len(evaluated))
