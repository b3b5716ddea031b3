"""The search itself."""

import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from quantry.autosearch.desk import Desk
from quantry.autosearch.evaluator import Direction, Judge
from quantry.autosearch.executor import make_executor
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.options import SearchOptions
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import Proposer, propose
from quantry.autosearch.race import Race
from quantry.autosearch.result import SearchResult, result_of
from quantry.autosearch.samplers import check_sampler
from quantry.autosearch.setting import Place, open_setting, search_identity
from quantry.autosearch.space import AnySpace, spaces_of
from quantry.autosearch.stream import Stream
from quantry.autosearch.study import Proposal, StudyFile
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
        with closing(make_executor(setting, place, chosen)) as executor:
            ledger = Ledger(chosen, directory, study, judge.direction)
            known = study.restore()
            proposer, notes = propose(study, spaces, chosen, known)
            stopped_by = _go_through(ledger, proposer, Desk(ledger, executor), known, len(setting.order))
        return result_of(ledger, stopped_by, notes, len(setting.order))


def _go_through(ledger: Ledger, proposer: Proposer, desk: Desk, known: Sequence[Proposal], size: int) -> str:
    """Run trials until there is a reason to stop, and return it."""
    try:
        if ledger.options.racing and size:
            return Race(ledger, proposer, desk, known, size).run()
        return Stream(ledger, proposer, desk, known).run()
    except BaseException:
        desk.give_up()
        raise
