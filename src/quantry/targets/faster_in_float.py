"""Leave nodes in float that a target computes slower with integers, if the whole model gains speed and accuracy.

Which kernels are slower depends on the processor (8-bit dot products, vector width) and on the runtime, so it is
measured. Measurements are stages: stored by the content of both models and by the machine, so that the same
measurements lead to the same model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from numpy.typing import NDArray

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.stage import machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.operators import LINEAR
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize
from quantry.memo import Blob, Handle, Memo, stage
from quantry.pipeline import DataLike, Stages, run_guard, run_quantize
from quantry.recipe import Recipe
from quantry.targets.backends import Backend
from quantry.targets.registry import backend_of
from quantry.targets.speed import LEAST_SPEEDUP, measure_on_target
from quantry.targets.target import Target

_Feeds = Mapping[str, NDArray[Any]]
# A node that costs less than this share of the float model's time is not worth another quantization.
_WORTH = 0.01
# A float node between integer ones needs two conversions, each of which costs about as much as a fast float kernel.
_WITH_CONVERSIONS = 3.0
_PROFILES = 2
_TIMED_RUNS = 60
_FLOATS = ("float", "float16", "")


@dataclass(frozen=True)
class SlowNodes:
    """The nodes that are slower with integers than in float.

    Attributes:
        names: In graph order.
        operators: Their operator types.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta={"names": [*self.names], "operators": [*self.operators]})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        names: Any = blob.meta["names"]
        operators: Any = blob.meta["operators"]
        return cls(tuple(names), tuple(operators))


@dataclass(frozen=True)
class Speedup:
    """How much faster one model is than another.

    Attributes:
        value: The median ratio of interleaved runs; above 1 if the second is faster.
    """

    value: float

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta={"value": self.value})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        value: Any = blob.meta["value"]
        return cls(float(value))


@stage(name="slow_nodes", version=1, environment=machine_environment)
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
    return SlowNodes(tuple(slow), tuple(operators[name] for name in slow))


@stage(name="speedup", version=1, environment=machine_environment)
def speedup(current: QuantizedModel, other: QuantizedModel, feeds: _Feeds, target: str) -> Speedup:
    """Time two quantized models alternately on a target.

    Args:
        current: The model to compare with.
        other: The other model.
        feeds: One sample.
        target: A target with a backend.
    """
    return Speedup(measure_on_target(target, current.to_bytes(), other.to_bytes(), feeds, _TIMED_RUNS).speedup)


@dataclass(frozen=True)
class _Attempt:
    stages: Stages
    sqnr: float


def leave_slow_nodes_float(
    stages: Stages, data: DataLike, recipe: Recipe, memo: Memo, target: Target
) -> tuple[Recipe, Stages, tuple[str, ...]]:
    """Quantize again without the nodes that are slower with integers, and keep that if speed and accuracy both gain.

    Args:
        stages: The quantized model.
        data: Calibration data, or a function that opens it.
        recipe: The recipe; nothing is tried unless ``evaluate.fall_back`` is set.
        memo: Stores and reuses results.
        target: The target; nothing is tried unless its backend measures times here.

    Returns:
        The recipe that was used, its stages, and notes on what stays float.
    """
    name = target.file or target.name
    if not recipe.evaluate.fall_back or not _measures(backend_of(target)):
        return recipe, stages, ()
    current = _guarded(stages, data, recipe, memo)
    if current is None:
        return recipe, stages, ()
    opened = data if isinstance(data, CalibrationData) else data()
    feeds = next(iter(opened))
    slow = memo.run(slow_nodes, stages.prepared, stages.quantized, feeds, name).value
    for names in _choices(slow):
        selection = replace(recipe.plan.selection, exclude=(*recipe.plan.selection.exclude, *names))
        changed = replace(recipe, plan=replace(recipe.plan, selection=selection))
        tried = _guarded(run_quantize(stages.prepared, data, changed, memo), data, changed, memo)
        # onnxruntime fuses a float node between two pairs back into an integer kernel; then accuracy does not change.
        if tried is None or tried.sqnr <= current.sqnr:
            continue
        gain = memo.run(speedup, stages.quantized, tried.stages.quantized, feeds, name).value.value
        if gain >= LEAST_SPEEDUP:
            kinds = ", ".join(dict.fromkeys(kind for node, kind in _pairs(slow) if node in names))
            note = (
                f"{len(names)} nodes ({kinds}) stay float, because that is faster on {target.name} here: {gain:.2f}x, "
                f"and {tried.sqnr:.1f} dB instead of {current.sqnr:.1f}"
            )
            return changed, tried.stages, (note,)
    return recipe, stages, ()


def _measures(backend: Backend | None) -> bool:
    return backend is not None and not backend.emulated and backend.version() is not None


def _choices(slow: SlowNodes) -> Iterator[tuple[str, ...]]:
    """Yield what to leave in float: all, else all but products, whose neighbours then need conversions."""
    cheap = tuple(name for name, operator in _pairs(slow) if operator not in LINEAR)
    yield from dict.fromkeys(names for names in (slow.names, cheap) if names)


def _pairs(slow: SlowNodes) -> Iterator[tuple[str, str]]:
    return zip(slow.names, slow.operators, strict=True)


def _guarded(stages: Stages, data: DataLike, recipe: Recipe, memo: Memo) -> _Attempt | None:
    report: Handle[Any] | None = run_guard(stages, data, recipe, memo)
    return None if report is None else _Attempt(stages, report.value.sqnr)
