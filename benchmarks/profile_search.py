"""Where the time of one whole search goes, by kind of work, by library and by function.

Run: python -m benchmarks.profile_search [--publish] [--trials 200]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.harness import measure
from benchmarks.locations import README, NotAvailable
from benchmarks.markdown import replace_section, table
from benchmarks.profile_quantize import home, place
from benchmarks.sampling_profiler import SamplingProfiler
from benchmarks.tasks.quantry_search import search
from benchmarks.workloads import SharedModel

_IMAGES, _TRIALS, _SHOWN = 32, 200, 15
_SESSIONS = ("_create_inference_session", "check_and_normalize_provider_args", "__del__")
"""Functions of onnxruntime that open and close sessions; whatever else it does is inference."""


def profiled(model: str, samples: str, count: int, trials: int) -> Callable[[], dict[str, Any]]:
    """Return a job that runs one search in this process under the profiler."""
    task = search(model, samples, count, "wide", trials)

    def job() -> dict[str, Any]:
        with SamplingProfiler() as profiler:
            found = task()
        kinds: Counter[str] = Counter()
        homes: Counter[str] = Counter()
        for (path, name), seconds in profiler.seconds.items():
            kinds[kind(path, name)] += seconds
            homes[home(path)] += seconds
        owners = [(place(path, name), seconds) for (path, name), seconds in profiler.owners.most_common(_SHOWN)]
        return {"kinds": dict(kinds), "homes": dict(homes), "owners": owners, "trials": found["trials"]}

    return job


def kind(path: str, name: str) -> str:
    """Return what sort of work a function does."""
    owner = home(path)
    if owner == "onnxruntime":
        return "opening sessions" if name in _SESSIONS else "inference"
    if "torch" in path:
        return "training"
    return "counting statistics of the float passes" if owner in ("quantry observe", "quantry native") else "all else"


def main() -> int:
    """Profile, print, and store where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true", help="put the tables into README.md")
    parser.add_argument("--trials", type=int, default=_TRIALS, help="how many configurations are tried")
    given = parser.parse_args()
    try:
        made = SharedModel("yolox_nano", _IMAGES).make()
    except NotAvailable as reason:
        print(f"skipped: {reason}")
        return 0
    done = measure("benchmarks.profile_search:profiled", {**made, "trials": given.trials})
    text = report(dict(done.facts), done.seconds)
    print(text)
    if given.publish:
        README.write_text(replace_section(README.read_text(), "search profile", text))
    return 0


def report(facts: dict[str, Any], seconds: float) -> str:
    """Return the tables."""
    total = sum(facts["kinds"].values())
    opening = (
        f"One search of yolox_nano over {facts['trials']} configurations without finetuning, {_IMAGES} images of which "
        f"half calibrate and half judge, into an empty store, in one process: {seconds:.1f} s, in which its threads "
        f"were busy for {total:.1f} s. Time of compiled code counts for the Python code that calls it."
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
