"""The search itself."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from quantry.autosearch.calibration_list import write_calibration
from quantry.autosearch.continuation import Continuation
from quantry.autosearch.data_split import undivided
from quantry.autosearch.desk import Desk
from quantry.autosearch.evaluator import Direction, Judge
from quantry.autosearch.executor import make_executor
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.listener import Listener
from quantry.autosearch.live_table import LiveTable
from quantry.autosearch.log_file import LogFile
from quantry.autosearch.options import SearchOptions
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.progress_log import ProgressLog
from quantry.autosearch.proposer import Proposer, propose
from quantry.autosearch.race import FEW_SAMPLES, Race, rungs
from quantry.autosearch.result import SearchResult, result_of
from quantry.autosearch.samplers import check_sampler
from quantry.autosearch.setting import Place, Setting, open_setting, search_identity
from quantry.autosearch.space import AnySpace, spaces_of
from quantry.autosearch.stream import TRIED, Stream
from quantry.autosearch.study import Proposal
from quantry.autosearch.summary_file import SummaryFile
from quantry.autosearch.trial_runner import TrialRunner
from quantry.data.open_data import pixel_notes
from quantry.errors import StoreError
from quantry.memo import Store


def run_search(
    model: Any,
    data: Any,
    evaluator: Any,
    space: AnySpace,
    options: SearchOptions | None = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> SearchResult:
    """Search a space for the recipe whose model an evaluator likes best.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes.
        evaluator: Judges a model file; see `Evaluator`. A plain function of the path returns what is to be maximized.
        space: What may be tried.
        options: How to search; None takes the defaults.
        store: Where results of stages are shared; None is a folder in the output directory.

    Returns:
        The best trial and all others. Everything is on disk too.

    Raises:
        UserError: Something given cannot be used.
        StoreError: The disk is full; what is there stays, and the same call goes on with it.
    """
    chosen = options or SearchOptions()
    check_sampler(chosen.sampler)
    judge = Judge.of(evaluator)
    spaces = spaces_of(space)
    directory = OutputDirectory(chosen.output_dir)
    with closing(directory):
        directory.open()
        place = Place.of(directory, store)
        setting = open_setting(model, data, judge, spaces, chosen, place)
        of_data = _pixels(setting)
        directory.study = search_identity(setting, spaces, chosen)
        directions: list[Direction] = ["minimize"] * len(chosen.objectives)
        directions[0] = judge.direction
        # Before an earlier search is set aside: what is wrong with the data to judge by is told here.
        judge.prepare(setting.float_path)
        with closing(Continuation(directory, directions, spaces, chosen.storage)) as continuation:
            with closing(make_executor(setting, place, chosen)) as executor:
                continuation.check_reference(executor)
                write_calibration(directory, setting.data)
                ledger = Ledger(chosen, directory, continuation.study, judge.direction)
                known = ledger.study.restore()
                proposer, notes = propose(ledger, known)
                notes = (*of_data, *continuation.notes, *notes, *_rough(setting, chosen))
                ledger.expected = proposer.recipes
                ledger.begun_before = bool(known)
                ledger.restored = frozenset(proposal.number for proposal in known if proposal.outcome is not None)
                with _told(ledger, [*_about(setting, chosen), *notes]):
                    _go_through(ledger, proposer, Desk(ledger, executor), known, len(setting.order))
            if ledger.best is not None and not directory.best_model.exists():
                # Its trial ran on another machine, or its file was taken away.
                TrialRunner(setting, place).write_model(ledger.best.recipe, directory.best_model)
        return result_of(ledger, notes, len(setting.order))


def _pixels(setting: Setting) -> tuple[str, ...]:
    """Return what there is to note on pixels, and warn of it: a search on wrong ones may take hours before its end."""
    notes = pixel_notes(undivided(setting.data))
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    return notes


def _go_through(ledger: Ledger, proposer: Proposer, desk: Desk, known: Sequence[Proposal], size: int) -> None:
    """Run trials until there is a reason to stop."""
    try:
        if ledger.options.racing and size:
            ledger.stopped_by = Race(ledger, proposer, desk, known, size).run()
        else:
            ledger.stopped_by = Stream(ledger, proposer, desk, known).run()
        ledger.write_best()
        if ledger.stopped_by == TRIED:
            # With limits that stopped it, the search may go on and has to draw as if it had not been stopped.
            ledger.study.hear()
    except BaseException:
        desk.give_up()
        raise


@contextmanager
def _told(ledger: Ledger, lines: list[str]) -> Iterator[None]:
    """Tell the log, search.json and the terminal what happens."""
    listeners: list[Listener] = [LogFile(ledger.options.log_file), SummaryFile(), ProgressLog(), LiveTable()]
    ledger.listeners = listeners
    for listener in listeners:
        listener.opened(ledger, lines)
    reason = None
    try:
        yield
        reason = ledger.stopped_by
    except BaseException as error:
        reason = _interrupted(ledger, error)
        raise
    finally:
        for listener in reversed(listeners):
            with suppress(StoreError):
                listener.closed(ledger, reason or "unknown")


def _rough(setting: Setting, options: SearchOptions) -> tuple[str, ...]:
    """Return a note where a race has few samples."""
    size = len(setting.order)
    if not options.racing or not rungs(FEW_SAMPLES)[0] < size < FEW_SAMPLES:
        return ()
    note = (
        f"racing on {size} samples estimates roughly: scores marked ~ are from as few as {rungs(size)[0]} of them and "
        "may be far from those on all; without racing every trial is evaluated in full"
    )
    return (note,)


def _interrupted(ledger: Ledger, error: BaseException) -> str:
    """Return what to say at the end of a search that did not end by itself."""
    why = "" if isinstance(error, KeyboardInterrupt) else f" by {type(error).__name__} {error}".rstrip()
    best = ledger.best
    found = "no trial is finished" if best is None else f"best so far: trial {best.number} with score {best.score:.6g}"
    where = "" if best is None else f", {ledger.directory.best_model}"
    return f"interrupted{why}; {found}{where}; started again in the same way it goes on from here"


def _about(setting: Setting, options: SearchOptions) -> Iterator[str]:
    yield f"model {setting.float_path}, {setting.data.size or 'unknown number of'} calibration samples"
    yield f"evaluator {setting.judge.identity}"
    tolerance = "everything is accepted" if options.tolerance is None else f"tolerance {options.tolerance}"
    yield f"sampler {options.sampler}, seed {options.seed}, {options.n_jobs} worker(s), {tolerance}, {options.stop}"
    if options.racing and not len(setting.order):
        yield "racing is off: the evaluator has no per_sample, so every trial is evaluated in full"
    elif options.racing:
        yield f"racing over {', '.join(map(str, rungs(len(setting.order))))} samples"
