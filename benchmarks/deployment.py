"""A target's own arithmetic next to the simulation: `python -m benchmarks.deployment mobilenetv2_035 --target qnn-htp`.

Prints whether the whole graph runs on the target's device, the signal-to-noise ratio of simulation and target against
the float model, and how often the largest output is the same. Emulators take about a second per image.
"""

import argparse
import time

import numpy as np

import quantry
from benchmarks.accuracy.suites import find_suite
from benchmarks.workloads.sample_folder import Sample
from quantry.runtime.sessions import deployment_session, run_session, simulation_session
from quantry.targets import backend_of, check_model, find_target, place


def decibels(exact: np.ndarray, other: np.ndarray) -> float:
    noise = np.square(exact.astype(np.float64) - other).sum()
    return float(10 * np.log10(np.square(exact.astype(np.float64)).sum() / max(noise, 1e-30)))


def spread(samples: list[Sample], count: int) -> list[Sample]:
    """Return samples that are spread evenly, because folders are sorted by class."""
    return samples[:: max(1, len(samples) // count)][:count]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("suite")
    arguments.add_argument("--target", default="qnn-htp")
    arguments.add_argument("--preset")
    arguments.add_argument("--calibrate", type=int, default=16)
    arguments.add_argument("--samples", type=int, default=32)
    given = arguments.parse_args()
    suite, target = find_suite(given.suite), find_target(given.target)
    preset = given.preset or target.recommended[0]
    backend = backend_of(target)
    assert backend is not None
    calibration = spread(list(suite.calibration()), given.calibrate)
    held_out = spread(list(suite.more_samples()), given.samples)
    started = time.perf_counter()
    result = quantry.quantize(suite.model(), calibration, preset, target=target)
    model = result.to_bytes()
    print(f"{suite.name} {preset}: {time.perf_counter() - started:.0f} s, {len(check_model(model, target))} violations")
    print(f"placement: {place(model, target, held_out[0]).summary}")
    exact, simulated = deployment_session(suite.model()), simulation_session(model)
    runner = backend.open(model)
    rows, same = [], []
    for sample in held_out:
        outputs = [next(iter(found.values())) for found in (run_session(exact, sample), run_session(simulated, sample))]
        outputs.append(next(iter(runner.run(sample).values())))
        float_output, simulation, device = outputs
        pairs = ((float_output, simulation), (float_output, device), (simulation, device))
        rows.append([decibels(one, other) for one, other in pairs])
        same.append([int(one.argmax()) == int(other.argmax()) for one, other in pairs])
    names = ("float and simulation", "float and target", "simulation and target")
    for name, db, share in zip(names, np.mean(rows, axis=0), np.mean(same, axis=0), strict=True):
        print(f"{name}: {db:.1f} dB, same largest output in {share:.1%} of {len(held_out)} samples")


if __name__ == "__main__":
    main()
