"""The search itself."""

import os
from contextlib import closing
from typing import Any

from quantry.autosearch.evaluator import Direction, Judge, Score
from quantry.autosearch.executor import Executor, InlineExecutor
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.options import SearchOptions
from quantry.autosearch.outcome import TrialTask
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import propose
from quantry.autosearch.result import SearchResult, result_of
from quantry.autosearch.samplers import check_sampler
from quantry.autosearch.setting import Place, open_setting, search_identity
from quantry.autosearch.space import AnySpace, spaces_of
from quantry.autosearch.stream import stream
from quantry.autosearch.study import StudyFile
from quantry.autosearch.trial_runner import REFERENCE, TrialRunner
from quantry.errors import StageError
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
        directions: list[Direction] = [judge.direction]
        directions += ["minimize"] * (len(chosen.objectives) - 1)
        study = StudyFile(directory, search_identity(setting, spaces, chosen), directions, spaces)
        with closing(InlineExecutor(TrialRunner(setting, place))) as executor:
            ledger = Ledger(chosen, directory, study, judge.direction, _reference(study, executor))
            known = study.restore()
            proposer, notes = propose(study, spaces, chosen, known)
            stopped_by = stream(ledger, proposer, executor, known)
        return result_of(ledger, stopped_by, notes)


def _reference(study: StudyFile, executor: Executor) -> Score:
    """Return the float model's score, from the study when it is known."""
    known = study.reference
    if known is None:
        executor.submit(TrialTask(REFERENCE, {}))
        outcome = executor.wait()
        if outcome.score is None:
            raise StageError(f"the evaluator must be able to judge the float model; it raised {outcome.error}")
        known = {"value": outcome.score, "interval": outcome.interval}
        study.set_reference(known)
    interval = known["interval"]
    return Score(known["value"], None if interval is None else (interval[0], interval[1]))
