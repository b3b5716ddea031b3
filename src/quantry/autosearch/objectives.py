"""What else than accuracy a model is measured by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantry.autosearch.bit_operations import bit_operations
from quantry.data.calibration_data import CalibrationData
from quantry.evaluate import measure_latency
from quantry.pipeline import Stages
from quantry.runtime.sessions import deployment_session

_TIMED_RUNS = 30


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        stages: How the model came about.
        path: The quantized model's file.
        size: Its bytes without the metadata.
        float_path: The float model's file.
        data: Samples that both run on.
    """

    stages: Stages
    path: Path
    size: int
    float_path: Path
    data: CalibrationData


def _latency(subject: Subject) -> float:
    # In turns with the float model, and as a ratio: what else the machine does slows both down.
    reference = deployment_session(subject.float_path, threads=1, interleaved=True)
    quantized = deployment_session(subject.path, threads=1, interleaved=True)
    return measure_latency(reference, quantized, next(iter(subject.data)), _TIMED_RUNS).ratio


def _size(subject: Subject) -> float:
    return float(subject.size)


def _bit_operations(subject: Subject) -> float:
    return bit_operations(subject.stages.equalized.value.model, subject.stages.plan.value)


_MEASURES: dict[str, Callable[[Subject], float]] = {
    "latency": _latency,
    "size": _size,
    "bit_operations": _bit_operations,
}


def measure_objectives(names: Sequence[str], subject: Subject) -> dict[str, float]:
    """Measure a model; less is better for all of these.

    Args:
        names: "latency" is the time of one run divided by the float model's, on one thread; "size" the bytes on disk;
            "bit_operations" the multiplications of one run, each weighed with the bits of both its operands.
        subject: What to measure.
    """
    return {name: _MEASURES[name](subject) for name in names}
