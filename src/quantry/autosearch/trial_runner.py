"""Runs one trial: quantize, write the model, judge it."""

import errno
import io
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.evaluator import Score
from quantry.autosearch.found_recipe import found_recipe
from quantry.autosearch.objectives import Subject, measure_objectives
from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.output_directory import disk_errors
from quantry.autosearch.setting import Place, Setting
from quantry.autosearch.single_flight import SingleFlightStore
from quantry.autosearch.written_model import model_size
from quantry.emit import emit
from quantry.errors import StoreError
from quantry.memo import Memo, Trace, fingerprint
from quantry.pipeline import Stages, run_prepare, run_quantize
from quantry.recipe import EmitOptions, Recipe, from_plain

REFERENCE = -1
"""The number under which the float model is judged."""

# Handles keep values in memory, so that the next trials do not read shared results from disk. On the demo detector, a
# search of 16 calibration trials takes 2.5 s of CPU time with this and 6.3 s without. Neighbours in the order of trials
# share most; four also cover a change of one option and back.
_HELD_TRIALS = 4


@dataclass
class TrialRunner:
    """Runs trials in this process, one at a time.

    What the last trials used stays in memory, so that neighbours in the order of trials read nothing from the disk that
    they share.

    Attributes:
        setting: What all trials have in common.
        place: Where models and results of stages go.
    """

    setting: Setting
    place: Place
    _held: deque[Stages] = field(default_factory=lambda: deque(maxlen=_HELD_TRIALS))

    def run(self, task: TrialTask) -> Outcome:
        """Run a trial and say what came of it; an error of the trial is an outcome too.

        Raises:
            StoreError: The disk is full; no trial is to blame for that.
        """
        started = time.perf_counter()
        trace = Trace()
        try:
            outcome = self._judge_float() if task.number == REFERENCE else self._run(task, trace)
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # whatever a trial ends with must not end the search
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                with disk_errors(self.place.directory.path):
                    raise
            outcome = Outcome(task.number, "failed", error=f"{type(error).__name__}: {error}")
        finally:
            if isinstance(self.place.store, SingleFlightStore):
                self.place.store.release()
        computed, reused = _tally(trace)
        seconds = outcome.seconds + time.perf_counter() - started
        return replace(outcome, seconds=seconds, computed=computed, reused=reused)

    def _judge_float(self) -> Outcome:
        known = getattr(self.setting.judge.evaluator, "reference_score", None)
        score = self.setting.judge.score(self.setting.float_path) if known is None else Score(float(known))
        return Outcome(REFERENCE, "complete", score.value, score.interval)

    def _run(self, task: TrialTask, trace: Trace) -> Outcome:
        path = self.place.directory.model(task.number)
        if not task.first and path.exists():
            return self._evaluate(task, path)
        recipe = from_plain(task.recipe)
        stages = self._quantize(recipe, trace)
        content = model_content(stages, recipe.emit)
        if content in task.stand_ins:
            return Outcome(task.number, "complete", content=content, same_as=task.stand_ins[content])
        if content in task.judged:
            self._write(stages, path)
            return self._take_over(task.number, task.judged[content])
        if not self._claim(content) and content != task.claimed:
            return Outcome(task.number, "complete", content=content, deferred=True)
        try:
            size = self._write(stages, path)
            subject = Subject(stages, path, size, self.setting.float_path, self.setting.data)
            objectives = measure_objectives(self.setting.objectives[1:], subject)
            return replace(self._evaluate(task, path), objectives=objectives, content=content)
        except BaseException:
            self._disclaim(content)
            raise

    def _claim(self, content: str) -> bool:
        return not isinstance(self.place.store, SingleFlightStore) or self.place.store.claim(content)

    def _disclaim(self, content: str) -> None:
        if isinstance(self.place.store, SingleFlightStore):
            self.place.store.disclaim(content)

    def _take_over(self, number: int, judged: Outcome) -> Outcome:
        """Return what came of a later trial with the same model as that of this one, and the seconds of judging."""
        directory = self.place.directory
        # After an interruption this one may have come further in its race than the other.
        if len(directory.read_scores(judged.number)) > len(directory.read_scores(number)):
            directory.write(directory.scores(number), directory.scores(judged.number).read_bytes())
        return replace(judged, number=number, seconds=max(judged.seconds - sum(judged.computed.values()), 0.0))

    def write_model(self, recipe: Recipe, path: Path) -> None:
        """Write the model of a recipe, without judging it.

        Raises:
            StoreError: The disk is full.
        """
        self._write(self._quantize(recipe, Trace()), path)

    def _quantize(self, recipe: Recipe, trace: Trace) -> Stages:
        memo = Memo(self.place.store, trace)
        prepared = run_prepare(self.setting.source, recipe, memo)
        stages = run_quantize(prepared, self.setting.data, found_recipe(recipe), memo)
        self._held.append(stages)
        return stages

    def _write(self, stages: Stages, path: Path) -> int:
        """Write a model and return its size."""
        with disk_errors(path):
            return model_size(stages.quantized.value.save(path))

    def _evaluate(self, task: TrialTask, path: Path) -> Outcome:
        score = self._score(task, path, self.place.directory.read_scores(task.number))
        samples = None if score.per_sample is None else len(score.per_sample)
        return Outcome(task.number, "complete", score.value, score.interval, samples)

    def _score(self, task: TrialTask, path: Path, known: NDArray[np.float64]) -> Score:
        judge, order = self.setting.judge, self.setting.order
        if task.stop is None and (not len(order) or hasattr(judge.evaluator, "scored")):
            return judge.score(path)
        stop = len(order) if task.stop is None else task.stop
        if len(known) < stop:
            more = judge.samples(path, order[len(known) : stop].tolist())
            known = np.concatenate([known, more])
            written = io.BytesIO()
            np.save(written, known)
            self.place.directory.write(self.place.directory.scores(task.number), written.getvalue())
        return Score.of_samples(known[:stop])


def model_content(stages: Stages, options: EmitOptions) -> str:
    """Return a digest of everything that decides a model's graph and weights, without writing it.

    Trials with the same digest write the same model apart from its metadata, so only one of them is evaluated.

    Args:
        stages: The trial's stages.
        options: The format in which the model is written.
    """
    return str(fingerprint((emit.name, emit.version, stages.written, stages.plan, stages.params, options)))


def _tally(trace: Trace) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return seconds of the stages that ran, and names of those that were known; several steps may be of one stage."""
    computed: dict[str, float] = {}
    for entry in trace.entries:
        if entry.outcome == "computed":
            computed[entry.stage] = computed.get(entry.stage, 0.0) + entry.seconds
    # What was known but no longer there ran again, and is in the trace twice.
    again = {entry.key for entry in trace.entries if entry.outcome == "computed"}
    reused = dict.fromkeys(
        entry.stage for entry in trace.entries if entry.outcome == "reused" and entry.key not in again
    )
    return computed, tuple(reused)
