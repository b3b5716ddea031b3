"""Where the time of one whole search goes, by kind of work, by library and by function.

Run: python -m benchmarks.profile_search [--publish] [--trials 200] [--calibrate 32] [--evaluate 128]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import measure
from benchmarks.locations import README, NotAvailable
from benchmarks.markdown import replace_section, table
from benchmarks.profile_quantize import home, place
from benchmarks.sampling_profiler import SamplingProfiler
from benchmarks.tasks.quantry_search import search
from benchmarks.workloads import SharedModel

_TRIALS, _SHOWN = 200, 15
_CALIBRATE, _EVALUATE = 32, 128
"""As a user would: a hundred images, or more, are what it takes to tell two good configurations apart."""

_INFERENCE, _TRAINING = "inference", "training"


def profiled(model: str, samples: str, count: int, trials: int, calibrate: int) -> Callable[[], dict[str, Any]]:
    """Return a job that runs one search in this process under the profiler."""
    task = search(model, samples, count, "wide", trials, calibrate=calibrate)

    def job() -> dict[str, Any]:
        with SamplingProfiler() as profiler:
            found = task()
        kinds: Counter[str] = Counter()
        homes: Counter[str] = Counter()
        for (path, name), seconds in profiler.seconds.items():
            kinds[kind(path, name)] += seconds
            homes[home(path)] += seconds
        owners = [(place(path, name), seconds) for (path, name), seconds in profiler.owners.most_common(_SHOWN)]
        known = {name: found[name] for name in ("trials", "evaluated", "observations")}
        return {"kinds": dict(kinds), "homes": dict(homes), "owners": owners, **known}

    return job


def kind(path: str, name: str) -> str:
    """Return what sort of work a function does.

    Threads that wait for inference in another one count for nothing, and that other one is inside a ``run``.
    """
    owner = home(path)
    if owner == "onnxruntime":
        return _INFERENCE if name.startswith("run") else "opening sessions"
    if "torch" in Path(path).parts:
        return _TRAINING
    return "counting statistics of the float passes" if owner in ("quantry observe", "quantry numerics") else "all else"


def main() -> int:
    """Profile, print, and store where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true", help="put the tables into README.md")
    parser.add_argument("--trials", type=int, default=_TRIALS, help="how many configurations are tried")
    parser.add_argument("--calibrate", type=int, default=_CALIBRATE, help="how many images calibrate")
    parser.add_argument("--evaluate", type=int, default=_EVALUATE, help="how many images models are evaluated on")
    given = parser.parse_args()
    try:
        made = SharedModel("yolox_nano", given.calibrate + given.evaluate).make()
    except NotAvailable as reason:
        print(f"skipped: {reason}")
        return 0
    arguments = {"trials": given.trials, "calibrate": given.calibrate}
    done = measure("benchmarks.profile_search:profiled", {**made, **arguments})
    text = report({**done.facts, "calibrate": given.calibrate, "evaluate": given.evaluate}, done.seconds)
    print(text)
    if given.publish:
        README.write_text(replace_section(README.read_text(), "search profile", text))
    return 0


def report(facts: dict[str, Any], seconds: float) -> str:
    """Return the tables."""
    total = sum(facts["kinds"].values())
    share = sum(facts["kinds"].get(name, 0.0) for name in (_INFERENCE, _TRAINING)) / total
    opening = (
        f"One search of yolox_nano over {facts['trials']} configurations without finetuning: calibration methods, "
        f"weights per tensor and per channel, cross-layer equalization. {facts['calibrate']} images calibrate and "
        f"{facts['evaluate']} others evaluate, by the mean squared difference of the outputs. The configurations give "
        f"{facts['evaluated']} different models, each written and evaluated once; the float model was observed "
        f"{'once' if facts['observations'] == 1 else str(facts['observations']) + ' times'}. Into an empty store, in "
        f"one process: {seconds:.1f} s, in which its threads were busy for {total:.1f} s. **Inference or training: "
        f"{share:.1%}**. Time of compiled code counts for the Python code that calls it."
    )

    def shares(part: dict[str, float]) -> list[tuple[str, str, str]]:
        ordered = sorted(part.items(), key=lambda item: -item[1])
        return [(name, f"{spent:.2f}", f"{spent / total:.1%}") for name, spent in ordered]

    return "\n\n".join(
        (
            opening,
            table(("work", "thread seconds", "share"), shares(facts["kinds"])),
            table(("code of", "thread seconds", "share"), shares(facts["homes"])),
            table(
                ("function of quantry, with what it calls elsewhere", "thread seconds", "share"),
                shares(dict(facts["owners"])),
            ),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
