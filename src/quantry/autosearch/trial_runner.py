"""Runs one trial: quantizes, writes the model, measures the objectives and evaluates."""

import errno
import io
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module, util
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.autosearch.context import SearchContext
from quantry.autosearch.evaluator import Score
from quantry.autosearch.output_directory import disk_errors, model_size
from quantry.autosearch.single_flight import SingleFlightStore
from quantry.autosearch.trial import FLOAT_MODEL, Trial
from quantry.data.calibration_data import CalibrationData
from quantry.emit import emit
from quantry.errors import RecipeError, StoreError
from quantry.evaluate import measure_latency
from quantry.files import read_regular
from quantry.graph.multiplications import multiplications
from quantry.graph.quant_plan import QuantPlan, SharedRange
from quantry.memo import Memo, Trace, TraceEntry, fingerprint
from quantry.pipeline import Observed, Stages, follow_names, run_observe, run_prepare, run_quantize
from quantry.recipe import DataType, EmitOptions, Recipe, TuneOptions
from quantry.runtime.sessions import deployment_session
from quantry.runtime.threads import one_torch_thread
from quantry.targets import backend_of, computed_for, integer_activations, is_computed_here, measure_on_target

# Trials whose stage results stay in memory, so that the next trials do not read them from disk: a search of 16
# calibration trials on the demo detector takes 2.5 s of CPU time instead of 6.3 s. Neighbours share most stages, and
# four also cover a change of one option and back; more could exhaust memory with large models.
_HELD_TRIALS = 4

# Runs per latency measurement; the ratio to the float model is then stable to a few percent on a busy machine.
_TIMED_RUNS = 30

_FLOAT_BITS = 32


@dataclass(frozen=True)
class KnownModels:
    """Models of other trials, by content digest, so that equal models are evaluated once.

    Attributes:
        earlier: Models to the numbers of earlier trials; a trial with the same model shares their score, and its model
            is neither written nor evaluated.
        later: Models to finished later trials; a trial with the same model writes it and takes over their result.
        unclaimed: A model that this trial evaluates even though another process holds the claim: that process is done
            with it without a usable result.
    """

    earlier: Mapping[str, int] = field(default_factory=dict)
    later: Mapping[str, Trial] = field(default_factory=dict)
    unclaimed: str | None = None


@dataclass
class TrialRunner:
    """Runs trials in this process, one at a time.

    Results of the last trials stay in memory, so that neighbouring trials share them without reading the disk.

    Attributes:
        context: What all trials share.
    """

    context: SearchContext
    _held: deque[Stages] = field(default_factory=lambda: deque(maxlen=_HELD_TRIALS))
    _observed: Observed | None = None
    _shared_work: tuple[Recipe, tuple[TraceEntry, ...]] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave results in memory with this process; another one reads them from the store."""
        return {**self.__dict__, "_held": deque(maxlen=_HELD_TRIALS), "_observed": None}

    def run(self, trial: Trial, samples: int | None = None, known: KnownModels | None = None) -> Trial:
        """Run a trial and return it with its result; an error of the trial is a result, too.

        Args:
            trial: The trial. If its content is set, its model has been written and is only evaluated.
            samples: Evaluate on this many samples, in the order of the race; None evaluates on all.
            known: Models of other trials.

        Returns:
            The finished trial; or a waiting one if another worker is evaluating the same model.

        Raises:
            StoreError: The disk is full, which is not the fault of the trial.
        """
        started = time.perf_counter()
        trace = Trace()
        try:
            if trial.number == FLOAT_MODEL:
                score = self.context.evaluator.float_score(self.context.float_path)
                finished = replace(
                    trial, state="complete", score=score.value, interval=score.interval, scores=score.named
                )
            else:
                finished = self._run(trial, samples, known or KnownModels(), trace)
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # an evaluator that calls sys.exit must not end the search
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                with disk_errors(self.context.directory.path):
                    raise
            kind = type(error).__name__
            finished = trial.failed(f"{kind}: {error}", error_type=kind, seconds=0.0)
        finally:
            self._release()
        seconds = finished.seconds + time.perf_counter() - started
        before = self._work_before(trial)
        seconds += sum(entry.seconds for entry in before if entry.outcome == "computed")
        computed, reused = _computed_and_reused((*before, *trace.entries))
        return replace(finished, seconds=seconds, computed=computed, reused=reused)

    def _work_before(self, trial: Trial) -> tuple[TraceEntry, ...]:
        """Return what `observe` did for the first run of a trial."""
        if self._shared_work is None or trial.number == FLOAT_MODEL or trial.content is not None:
            return ()
        recipe, entries = self._shared_work
        return entries if recipe == trial.recipe else ()

    def _run(self, trial: Trial, samples: int | None, known: KnownModels, trace: Trace) -> Trial:
        # The time and stages of earlier rungs of a race are added up by the caller.
        trial = replace(trial, seconds=0.0)
        path = self.context.directory.model(trial.number)
        if trial.content is not None and path.exists():
            return self._evaluated(trial, samples, path)
        stages = self._quantize(trial.recipe, trace)
        if stages.plan.value.is_empty:
            # It would win every search with the float model.
            raise RecipeError("a recipe must quantize at least one node, got none that this model has")
        content = model_content(stages, trial.recipe.emit)
        trial = replace(trial, content=content)
        if content in known.earlier:
            return replace(trial, state="complete", same_as=known.earlier[content])
        if content in known.later:
            self._write(stages, path)
            return self._taken_over(trial, known.later[content])
        if not self._claim(content) and content != known.unclaimed:
            return replace(trial, state="waiting")
        try:
            size = self._write(stages, path)
            measured = MeasuredModel(stages, path, size, self.context.float_path, self.context.data)
            objectives = {name: OBJECTIVE_FUNCTIONS[name](measured) for name in self.context.objectives[1:]}
            return self._evaluated(replace(trial, objectives=objectives), samples, path)
        except BaseException:
            if isinstance(self.context.store, SingleFlightStore):
                self.context.store.release_claim(content)
            raise

    def _release(self) -> None:
        """Let other processes compute stages that failed here."""
        if isinstance(self.context.store, SingleFlightStore):
            self.context.store.release()

    def _claim(self, content: str) -> bool:
        return not isinstance(self.context.store, SingleFlightStore) or self.context.store.claim(content)

    def _taken_over(self, trial: Trial, later: Trial) -> Trial:
        """Return a trial with the result of a later one that has the same model; only evaluation time is shared."""
        directory = self.context.directory
        # After an interruption this trial may have been further in its race than the other.
        if len(directory.read_scores(later.number)) > len(directory.read_scores(trial.number)):
            directory.write(directory.scores(trial.number), read_regular(directory.scores(later.number)), synced=False)
        seconds = max(later.seconds - sum(later.computed.values()), 0.0)
        return replace(trial.with_result(later.result()), seconds=seconds)

    def write_model(self, recipe: Recipe, path: Path) -> None:
        """Write the model of a recipe without evaluating it.

        Raises:
            StoreError: The disk is full.
        """
        self._write(self._quantize(recipe, Trace()), path)

    def kernel_cost(self, recipe: Recipe) -> float:
        """Return the bit operations of a recipe's model; products that its target computes in float count as float."""
        # Tuning changes no type, and what it needs is stored only as long as the store has room.
        stages = self._quantize(replace(recipe, tune=TuneOptions()), Trace())
        kernels = integer_activations() if is_computed_here(self.context.target or recipe.target) else None
        return bit_operations(stages.equalized.value.model, stages.plan.value, kernels)

    def observe(self, recipe: Recipe) -> None:
        """Run the float passes that a recipe needs, and keep what they found; the time counts for its trial."""
        trace = Trace()
        memo = Memo(self.context.store, trace)
        prepared = run_prepare(self.context.source, recipe, memo)
        named, _ = follow_names(self.context.source, prepared, recipe)
        try:
            self._observed = run_observe(prepared, self.context.data, named, memo)
            self._shared_work = recipe, trace.entries
        finally:
            self._release()

    def _quantize(self, recipe: Recipe, trace: Trace) -> Stages:
        memo = Memo(self.context.store, trace)
        prepared = run_prepare(self.context.source, recipe, memo)
        named, _ = follow_names(self.context.source, prepared, recipe)
        with _one_thread_of_training(recipe):
            stages = run_quantize(prepared, self.context.data, named, memo)
        self._held.append(stages)
        return stages

    def _write(self, stages: Stages, path: Path) -> int:
        """Write a model and return its size."""
        with disk_errors(path):
            return model_size(stages.quantized.value.save(path))

    def _evaluated(self, trial: Trial, samples: int | None, path: Path) -> Trial:
        with computed_for(self.context.target or trial.recipe.target):
            score = self._score(trial.number, samples, path)
        count = None if score.per_sample is None else len(score.per_sample)
        return replace(
            trial, state="complete", score=score.value, interval=score.interval, samples=count, scores=score.named
        )

    def _score(self, number: int, samples: int | None, path: Path) -> Score:
        evaluator, order = self.context.evaluator, self.context.sample_order
        if samples is None and (not len(order) or hasattr(evaluator.evaluator, "scored")):
            return self._with_saved_samples(number, evaluator.score(path))
        directory = self.context.directory
        stop = len(order) if samples is None else samples
        known = directory.read_scores(number)
        if len(known) < stop:
            known = np.concatenate([known, evaluator.per_sample(path, order[len(known) : stop].tolist())])
            # Saved at once, so that an interrupted search evaluates no sample twice.
            self._save_samples(number, known)
        return Score.of_samples(known[:stop])

    def _with_saved_samples(self, number: int, score: Score) -> Score:
        """Save per-sample scores that an evaluator returned with its score; they allow paired comparisons."""
        if score.per_sample is not None:
            self._save_samples(number, score.per_sample)
        return score

    def _save_samples(self, number: int, scores: NDArray[np.float64]) -> None:
        written = io.BytesIO()
        np.save(written, scores)
        self.context.directory.write(self.context.directory.scores(number), written.getvalue(), synced=False)


@contextmanager
def _one_thread_of_training(recipe: Recipe) -> Iterator[None]:
    """Train on one thread of torch, however many workers there are.

    Torch adds gradients in another order with each number of threads. One worker would use all cores and several one
    each, and the same trial would have other bytes. What runs in onnxruntime, NumPy and the kernels does not depend on
    the number of threads.
    """
    if any(hasattr(step, "iterations") for step in recipe.tune.steps) and util.find_spec("torch") is not None:
        # Loaded here: only a loaded torch can be limited.
        import_module("torch")
    with one_torch_thread():
        yield


def model_content(stages: Stages, options: EmitOptions) -> str:
    """Return a digest of everything that decides a model's graph and weights, without writing it.

    Trials with the same digest write the same model apart from its metadata, so only one of them is evaluated.

    Args:
        stages: The trial's stages.
        options: The format in which the model is written.
    """
    return str(fingerprint((emit.name, emit.version, stages.written, stages.plan, stages.params, options)))


def _computed_and_reused(entries: Sequence[TraceEntry]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the seconds of stages that ran, added up by name, and the names of those whose results were stored."""
    computed: dict[str, float] = {}
    for entry in entries:
        if entry.outcome == "computed":
            computed[entry.stage] = computed.get(entry.stage, 0.0) + entry.seconds
    # A result that was evicted between lookup and load is computed again, and is in the trace twice.
    again = {entry.key for entry in entries if entry.outcome == "computed"}
    reused = dict.fromkeys(entry.stage for entry in entries if entry.outcome == "reused" and entry.key not in again)
    return computed, tuple(reused)


@dataclass(frozen=True)
class MeasuredModel:
    """A quantized model whose objectives are measured.

    Attributes:
        stages: Results of all stages.
        path: The quantized model's file.
        size: Its bytes without the metadata.
        float_path: The float model's file.
        data: Samples to run both models on.
    """

    stages: Stages
    path: Path
    size: int
    float_path: Path
    data: CalibrationData


def _latency(model: MeasuredModel) -> float:
    target = model.stages.quantized.value.model.metadata_props.get("quantry.target", "")
    backend = backend_of(target) if target else None
    if backend is not None and not backend.emulated and backend.version() is not None:
        return measure_on_target(target, model.float_path, model.path, next(iter(model.data)), _TIMED_RUNS).ratio
    # Runs of both models alternate, and the ratio is reported: other load on the machine slows down both.
    reference = deployment_session(model.float_path, threads=1, interleaved=True)
    quantized = deployment_session(model.path, threads=1, interleaved=True)
    return measure_latency(reference, quantized, next(iter(model.data)), _TIMED_RUNS).ratio


def _bit_operations(model: MeasuredModel) -> float:
    return bit_operations(model.stages.equalized.value.model, model.stages.plan.value)


OBJECTIVE_FUNCTIONS: dict[str, Callable[[MeasuredModel], float]] = {
    "latency": _latency,
    "size": lambda model: float(model.size),
    "bit_operations": _bit_operations,
}
"""How objectives other than accuracy are measured; less is better for all of them.

"latency" is the time of one run relative to the float model's, on one thread; "size" is the bytes on disk.
"""


def bit_operations(model: ir.Model, plan: QuantPlan, kernels: Collection[DataType] | None = None) -> float:
    """Return the multiplications of Conv, ConvTranspose, Gemm and MatMul, each times the bits of both operands.

    After the "BOPs" of UNIQ (Baskin et al., 2018): a product of two 8-bit numbers counts 64, one of floats 32 * 32.
    Unknown dimensions count as 1.

    Args:
        model: The float graph that was planned, with its shapes.
        plan: Data types of all tensors.
        kernels: Types of activations with integer kernels; products with others count as float. None is all types.
    """

    def bits(node: ir.Node) -> int:
        types = [_type(node, index, plan) for index in (0, 1)]
        if kernels is not None and types[0] not in kernels:
            return _FLOAT_BITS * _FLOAT_BITS
        return math.prod(_FLOAT_BITS if dtype is None else dtype.bits for dtype in types)

    return sum(count * bits(node) for node in model.graph if (count := multiplications(node)))


def _type(node: ir.Node, index: int, plan: QuantPlan) -> DataType | None:
    """Return the type of one input of a node; None if it stays float."""
    value = node.inputs[index] if index < len(node.inputs) else None
    name = None if value is None else value.name
    if name is None or node.name not in plan.quantized_nodes:
        return None
    if name in plan.weights:
        return plan.weights[name].spec.dtype
    for conversion in plan.conversions.values():
        if conversion.tensor == name and node.name in conversion.readers:
            return conversion.spec.dtype
    if name not in plan.activations:
        return None
    entry = plan.activations[plan.root(name)]
    return None if isinstance(entry, SharedRange) else entry.spec.dtype
