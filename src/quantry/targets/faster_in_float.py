"""Leave nodes in float that a target computes slower with integers, if the whole model gains speed and accuracy.

Which kernels are slower depends on the processor (8-bit dot products, vector width) and on the runtime, so it is
measured. Measurements are stages: stored by the content of both models and by the machine, so that the same
measurements lead to the same model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.stage import machine_environment
from quantry.facts.operators import LINEAR
from quantry.graph.float_model import FloatModel
from quantry.graph.load import ModelSource
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize
from quantry.memo import Blob, Memo, stage
from quantry.notes import Note
from quantry.pipeline import DataLike, Stages, run_guard, run_quantize
from quantry.recipe import Recipe, TuneOptions
from quantry.targets.backends import Backend
from quantry.targets.registry import backend_of
from quantry.targets.speed import LEAST_SPEEDUP, measure_on_target, slow_because
from quantry.targets.target import Target

_Feeds = Mapping[str, NDArray[Any]]
# A node that costs less than this share of the float model's time is not worth another quantization.
_WORTH = 0.01
# A float node between integer ones needs two conversions, each of which costs about as much as a fast float kernel.
_WITH_CONVERSIONS = 3.0
_PROFILES = 2
# Pairs of timed runs: as many as fit into three seconds, within these limits.
_TIMED_RUNS = (10, 60)
_TIMED_MILLISECONDS = 1500.0
# Milliseconds of the float model. Of a shorter one only noise would be measured; a longer one would take minutes.
_SHORTEST, _LONGEST = 0.2, 5000.0
_FLOATS = ("float", "float16", "")


@dataclass(frozen=True)
class SlowNodes:
    """The nodes that are slower with integers than in float.

    Attributes:
        names: In graph order.
        operators: Their operator types.
        milliseconds: Time of the whole float model.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]
    milliseconds: float

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(
            meta={"names": [*self.names], "operators": [*self.operators], "milliseconds": self.milliseconds},
        )

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        names: Any = blob.meta["names"]
        operators: Any = blob.meta["operators"]
        milliseconds: Any = blob.meta["milliseconds"]
        return cls(tuple(names), tuple(operators), float(milliseconds))


@dataclass(frozen=True)
class Speed:
    """How much faster one model is than another.

    Attributes:
        value: The ratio of interleaved runs; above 1 if the second is faster.
        because: What costs the second its speed; empty if it is faster.
    """

    value: float
    because: str = ""

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta={"value": self.value, "because": self.because})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        value: Any = blob.meta["value"]
        return cls(float(value), str(blob.meta["because"]))


@stage(name="slow_nodes", version=2, environment=machine_environment)
def slow_nodes(reference: FloatModel, quantized: QuantizedModel, feeds: _Feeds, target: str) -> SlowNodes:
    """Find the nodes whose integer kernel takes longer than their float kernel on this machine.

    Args:
        reference: The float model.
        quantized: The quantized model.
        feeds: One sample.
        target: A target with a backend.
    """
    backend = backend_of(target)
    assert backend is not None
    floats: dict[str, float] = {}
    integers: dict[str, float] = {}
    operators: dict[str, str] = {}
    models = serialize(reference.model), quantized.to_bytes()
    # Profiles alternate, and the fastest run of each kernel counts: other load only makes kernels slower.
    for _ in range(_PROFILES):
        for entry in backend.placement(models[0], feeds):
            if entry.milliseconds is not None:
                floats[entry.node] = min(entry.milliseconds, floats.get(entry.node, entry.milliseconds))
        for entry in backend.placement(models[1], feeds):
            if entry.milliseconds is not None and entry.precision not in _FLOATS:
                integers[entry.node] = min(entry.milliseconds, integers.get(entry.node, entry.milliseconds))
                operators[entry.node] = entry.operator
    least = _WORTH * sum(floats.values())
    slow = [
        name
        for name, time in integers.items()
        if name in floats and time - floats[name] > least and time > _WITH_CONVERSIONS * floats[name]
    ]
    return SlowNodes(tuple(slow), tuple(operators[name] for name in slow), sum(floats.values()))


@stage(name="speedup", version=2, environment=machine_environment)
def speedup(current: QuantizedModel, other: QuantizedModel, feeds: _Feeds, target: str, runs: int) -> Speed:
    """Time two quantized models alternately on a target.

    Args:
        current: The model to compare with.
        other: The other model.
        feeds: One sample.
        target: A target with a backend.
        runs: Number of timed pairs.
    """
    times = measure_on_target(target, current.to_bytes(), other.to_bytes(), feeds, runs)
    # Other load on the machine must not decide, so most pairs of runs have to agree.
    return Speed(min(times.speedup, LEAST_SPEEDUP / times.ratio_quartiles[1]))


@stage(name="speed_over_float", version=1, environment=machine_environment)
def speed_over_float(source: ModelSource, quantized: QuantizedModel, feeds: _Feeds, target: str, runs: int) -> Speed:
    """Time a quantized model and the user's float model alternately on a target.

    Args:
        source: The user's model.
        quantized: The quantized model.
        feeds: One sample.
        target: A target with a backend.
        runs: Number of timed pairs.
    """
    content = quantized.to_bytes()
    times = measure_on_target(target, source.load(), content, feeds, runs)
    backend = backend_of(target)
    assert backend is not None
    # Other load on the machine only makes runs slower, so the faster runs must agree with the median.
    is_slow = max(times.speedup, times.float_quartiles[0] / times.quantized_quartiles[0]) < LEAST_SPEEDUP
    if not is_slow:
        return Speed(times.speedup)
    tables = [backend.placement(model, feeds) for model in (content, serialize(source.load()))]
    return Speed(times.speedup, slow_because(times, tables[0], target, tables[1]) or "")


@dataclass(frozen=True)
class Deployed:
    """A quantized model whose speed on the target is known.

    Attributes:
        recipe: The recipe that was used.
        stages: Its stages.
        notes: What stays float, and why.
        slow_because: That the model is not faster than the float model, and which nodes cost it; None if it is faster.
    """

    recipe: Recipe
    stages: Stages
    notes: tuple[Note, ...] = ()
    slow_because: str | None = None


def deploy(source: ModelSource, stages: Stages, data: DataLike, recipe: Recipe, memo: Memo, target: Target) -> Deployed:
    """Leave nodes in float that are slower with integers, and compare the speed with the float model's.

    Args:
        source: The user's model.
        stages: The quantized model.
        data: Calibration data, or a function that opens it.
        recipe: The recipe; nothing is measured unless ``evaluate.faster_in_float`` is set.
        memo: Stores and reuses results.
        target: The target; nothing is measured unless its backend measures times here.
    """
    unchanged = Deployed(recipe, stages)
    if not recipe.evaluate.faster_in_float or not _measures(backend_of(target)):
        return unchanged
    opened = data if isinstance(data, CalibrationData) else data()
    feeds, name = next(iter(opened)), target.file or target.name
    slow = memo.run(slow_nodes, stages.prepared, stages.quantized, feeds, name).value
    if not _SHORTEST <= slow.milliseconds <= _LONGEST:
        return unchanged
    timing = _Timing(feeds, name, int(np.clip(_TIMED_MILLISECONDS / slow.milliseconds, *_TIMED_RUNS)))
    best = _without_slow_nodes(unchanged, data, memo, slow, timing)
    speed = memo.run(speed_over_float, source, best.stages.quantized, timing.feeds, timing.target, timing.runs).value
    return replace(best, slow_because=speed.because or None)


@dataclass(frozen=True)
class _Timing:
    """How to time: one sample, the target, and the number of pairs of runs."""

    feeds: _Feeds
    target: str
    runs: int


def _without_slow_nodes(given: Deployed, data: DataLike, memo: Memo, slow: SlowNodes, timing: _Timing) -> Deployed:
    """Return the fastest model with some of the slow nodes in float, if it is more accurate too; else the given one."""
    recipe, stages = given.recipe, given.stages
    faster = []
    for names in _choices(slow):
        selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
        changed = replace(recipe, plan=replace(recipe.plan, selection=selection))
        # Tuning changes weights and takes long; the speed does not depend on them.
        light = run_quantize(stages.prepared, data, replace(changed, tune=TuneOptions()), memo)
        gain = memo.run(
            speedup, stages.quantized, light.quantized, timing.feeds, timing.target, timing.runs
        ).value.value
        if gain >= LEAST_SPEEDUP:
            faster.append((gain, names, changed))
    for gain, names, changed in sorted(faster, key=lambda entry: -entry[0]):
        before = run_guard(stages, data, recipe, memo)
        tried = run_quantize(stages.prepared, data, changed, memo)
        after = run_guard(tried, data, changed, memo)
        # onnxruntime fuses a float node between two pairs back into an integer kernel; then accuracy does not change.
        if before is None or after is None or after.value.sqnr <= before.value.sqnr:
            continue
        kinds = ", ".join(dict.fromkeys(kind for node, kind in _pairs(slow) if node in names))
        note = Note.of(
            "{count} nodes ({operators}) stay float, because that is faster on {target} here: {speedup:.2f}x, and "
            "{after:.1f} dB instead of {before:.1f}",
            count=len(names),
            operators=kinds,
            target=timing.target,
            speedup=gain,
            after=after.value.sqnr,
            before=before.value.sqnr,
        )
        return Deployed(changed, tried, (note,))
    return given


def _measures(backend: Backend | None) -> bool:
    return backend is not None and not backend.emulated and backend.version() is not None


def _choices(slow: SlowNodes) -> Iterator[tuple[str, ...]]:
    """Yield what to leave in float: all, else all but products, whose neighbours then need conversions."""
    cheap = tuple(name for name, operator in _pairs(slow) if operator not in LINEAR)
    yield from dict.fromkeys(names for names in (slow.names, cheap) if names)


def _pairs(slow: SlowNodes) -> Iterator[tuple[str, str]]:
    return zip(slow.names, slow.operators, strict=True)
