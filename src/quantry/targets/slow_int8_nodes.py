"""Stages that measure speed on a target: which nodes are slower with integers than in float, and the whole model.

Which kernels are slower depends on the processor (8-bit dot products, vector width) and on the runtime. Measurements
are stored by the content of both models and by the machine, so that the same measurements lead to the same model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from numpy.typing import NDArray

from quantry.evaluate.stage import machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.load import ModelSource
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize
from quantry.memo import Blob, stage
from quantry.targets.registry import backend_of
from quantry.targets.speed import LEAST_SPEEDUP, measure_on_target, slow_because

_Feeds = Mapping[str, NDArray[Any]]
# A node that costs less than this share of the float model's time is not worth another quantization.
_WORTH = 0.01
# A float node between integer ones needs two conversions, each of which costs about as much as a fast float kernel.
_WITH_CONVERSIONS = 3.0
_PROFILES = 2
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
        return Blob(meta={"names": [*self.names], "operators": [*self.operators], "milliseconds": self.milliseconds})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        meta: Any = blob.meta
        return cls(tuple(meta["names"]), tuple(meta["operators"]), float(meta["milliseconds"]))


@dataclass(frozen=True)
class SpeedOverFloat:
    """How many times as fast as the float model a quantized model is.

    Attributes:
        value: The median ratio of interleaved runs.
        least, most: What most pairs of runs agree on: other load on the machine must not decide.
        because: What costs the quantized model its speed; empty if it is faster than float.
    """

    value: float
    least: float
    most: float
    because: str = ""

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta=asdict(self))

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        meta: Any = blob.meta
        return cls(float(meta["value"]), float(meta["least"]), float(meta["most"]), str(meta["because"]))


@stage(name="slow_int8_nodes", version=1, environment=machine_environment)
def slow_int8_nodes(reference: FloatModel, quantized: QuantizedModel, feeds: _Feeds, target: str) -> SlowNodes:
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


@stage(name="speed_over_float", version=2, environment=machine_environment)
def speed_over_float(
    source: ModelSource, quantized: QuantizedModel, feeds: _Feeds, target: str, runs: int
) -> SpeedOverFloat:
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
    low, high = times.ratio_quartiles
    speed = SpeedOverFloat(times.speedup, 1 / high, 1 / low)
    # Other load on the machine only makes runs slower, so the faster runs must agree with the median.
    if max(times.speedup, times.float_quartiles[0] / times.quantized_quartiles[0]) >= LEAST_SPEEDUP:
        return speed
    tables = [backend.placement(model, feeds) for model in (content, serialize(source.load()))]
    because = slow_because(times, tables[0], target, tables[1]) or ""
    return SpeedOverFloat(speed.value, speed.least, speed.most, because)
