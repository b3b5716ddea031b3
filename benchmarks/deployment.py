"""A target's own arithmetic and speed: `python -m benchmarks.deployment mobilenetv2_035 --target qnn-htp`.

Quantizes shared models for a target and measures whether the whole graph runs on the device, the metric and the
signal-to-noise ratio of float, simulation and target on the same samples, and the speed next to the float model.
Outputs are stored by content, so that a longer run continues a shorter one: an emulator takes a second per image.
"""

import argparse
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import quantry
from benchmarks.accuracy.score import Run, Score, paired_interval
from benchmarks.accuracy.suites import Suite, find_suite
from benchmarks.locations import OUT, NotAvailable
from benchmarks.publish import publish_deployment
from benchmarks.result_file import ResultFile
from benchmarks.workloads.sample_folder import Sample
from quantry.evaluate.arithmetic import arithmetic_in_force
from quantry.quantization import DEFAULT_STORE, open_store
from quantry.targets import (
    Target,
    backend_of,
    check_model,
    find_target,
    measure_on_target,
    on_target,
    place,
    simulated_for,
    slow_because,
)

_Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        target: The target.
        preset: The preset; None takes the first that the target recommends.
        calibrate: Number of calibration samples.
        samples: Number of held-out samples; 0 measures no quality.
        latency: Timed pairs of runs; 0 measures no speed.
    """

    target: Target
    preset: str | None
    calibrate: int
    samples: int
    latency: int


class Recorder:
    """Runs a model sample by sample and keeps its outputs."""

    def __init__(self, model: Path, name: str) -> None:
        self._session = arithmetic_in_force().open(model)
        self._name = name
        self.outputs: list[_Array] = []

    def __call__(self, batch: _Array) -> _Array:
        parts = [self._session.run(None, {self._name: batch[index : index + 1]})[0] for index in range(len(batch))]
        self.outputs += parts
        return np.concatenate(parts)


def floats(samples: list[Sample], count: int) -> list[Sample]:
    """Return samples that are spread evenly, because folders are sorted by class; pixels become float."""
    chosen = samples[:: max(1, len(samples) // count)][:count]
    return [
        {name: array.astype(np.float32) if array.dtype == np.uint8 else array for name, array in sample.items()}
        for sample in chosen
    ]


def decibels(exact: list[_Array], other: list[_Array]) -> float:
    """Return the mean signal-to-noise ratio of the samples."""
    noise = [np.square(a.astype(np.float64) - b).sum() for a, b in zip(exact, other, strict=True)]
    signal = [np.square(a.astype(np.float64)).sum() for a in exact]
    return float(np.mean([10 * np.log10(s / max(n, 1e-30)) for s, n in zip(signal, noise, strict=True)]))


def quality(suite: Suite, model: Path, settings: Settings, name: str) -> dict[str, Any]:
    """Return metrics and ratios of float model, simulation and target on the same samples."""
    scores: dict[str, Score] = {}
    recorded: dict[str, Recorder] = {}

    def measured(label: str, path: Path) -> None:
        recorded[label] = Recorder(path, name)
        run: Run = recorded[label]
        scores[label] = suite.score(path, settings.samples, run)

    measured("float", suite.model())
    with simulated_for(settings.target):
        measured("simulation", model)
    with on_target(settings.target, open_store(DEFAULT_STORE)):
        measured("target", model)
    outputs = {label: recorder.outputs for label, recorder in recorded.items()}
    pairs = (("float", "simulation"), ("float", "target"), ("simulation", "target"))
    return {
        "metric": suite.metric,
        "samples": scores["float"].count,
        "scores": {label: score.value for label, score in scores.items()},
        "target_minus_simulation": paired_interval(
            list(scores["target"].replicates), list(scores["simulation"].replicates)
        ),
        "decibels": {f"{one}, {other}": decibels(outputs[one], outputs[other]) for one, other in pairs},
        "same_largest": float(
            np.mean([a.argmax() == b.argmax() for a, b in zip(outputs["simulation"], outputs["target"], strict=True)])
        ),
    }


def measure(suite: Suite, settings: Settings) -> dict[str, Any]:
    """Quantize a model for the target and return everything that was measured."""
    target = settings.target
    preset = settings.preset or target.recommended[0]
    calibration = floats(list(suite.calibration()), settings.calibrate)
    sample = floats(list(suite.calibration()), 1)[0]
    model = OUT / "deployment" / f"{suite.name}.{target.name}.{preset}.onnx"
    model.parent.mkdir(parents=True, exist_ok=True)
    quantry.quantize(suite.model(), calibration, preset, target=target).save(model)
    entry: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": target.name,
        "preset": preset,
        "calibrated": len(calibration),
        "violations": len(check_model(model, target)),
    }
    backend = backend_of(target)
    if backend is None:
        return entry
    placement = place(model, target, sample)
    entry |= {"placement": placement.summary, "elsewhere": len(placement.elsewhere)}
    if settings.samples:
        entry["quality"] = quality(suite, model, settings, next(iter(sample)))
    if settings.latency and not backend.emulated:
        times = measure_on_target(target, suite.model(), model, sample, settings.latency)
        slow = slow_because(times, placement.nodes, target.name)
        entry["latency"] = {**asdict(times), "speedup": times.speedup, "slow_because": slow}
    return entry


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", help="folders of the shared data")
    parser.add_argument("--target", default="qnn-htp")
    parser.add_argument("--preset", help="default: what the target recommends")
    parser.add_argument("--calibrate", type=int, default=16)
    parser.add_argument("--samples", type=int, default=32, help="held-out samples; 0 for none")
    parser.add_argument("--latency", type=int, default=0, help="timed pairs of runs; 0 for none")
    parser.add_argument("--publish", action="store_true", help="put all results so far into benchmarks/README.md")
    given = parser.parse_args()
    target = find_target(given.target)
    settings = Settings(target, given.preset, given.calibrate, given.samples, given.latency)
    store = ResultFile(OUT / "deployment.json")
    command = shlex.join(["python", "-m", "benchmarks.deployment", *sys.argv[1:]])
    store.start(command, fresh=False)
    for name in given.suites:
        try:
            entry = measure(find_suite(name), settings)
        except NotAvailable as reason:
            print(f"{name}: {reason}")
            continue
        store.put(f"{name} {target.name} {entry['preset']}", {**entry, "command": command})
        print(name, entry, flush=True)
    if given.publish:
        publish_deployment(store.read())


if __name__ == "__main__":
    main()
