"""Where the time of one whole `quantize` goes, by stage, by library and by function.

Run: python -m benchmarks.profile_quantize [--publish]
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
from benchmarks.sampling_profiler import SamplingProfiler
from benchmarks.tasks.samples import SampleReader
from benchmarks.workloads import SharedModel

_PRESET, _IMAGES, _SHOWN = "XINT8", 32, 12
_LIBRARIES = ("onnxruntime", "numpy", "onnx_ir", "onnx", "safetensors")


def profiled(model: str, samples: str, count: int) -> Callable[[], dict[str, Any]]:
    """Return a job that runs one `quantize` under the profiler."""
    import onnxruntime  # noqa: F401 - loaded before the clock starts

    import quantry

    quantize = quantry.quantize

    def job() -> dict[str, Any]:
        with SamplingProfiler() as profiler:
            result = quantize(model, SampleReader(samples, count), _PRESET)
            result.save("quantized.onnx")
        functions = [(place(path, name), seconds) for (path, name), seconds in profiler.seconds.most_common(_SHOWN)]
        homes: Counter[str] = Counter()
        for (path, _), seconds in profiler.seconds.items():
            homes[home(path)] += seconds
        stages = [(entry.stage, entry.seconds) for entry in result.trace.entries]
        return {"homes": dict(homes), "stages": stages, "functions": functions}

    return job


def home(path: str) -> str:
    """Return whose code it is: a room of quantry, a library, or anything else."""
    parts = Path(path).parts
    if "quantry" in parts:
        inside = parts[len(parts) - parts[::-1].index("quantry") :]
        return f"quantry {inside[0].removesuffix('.py')}"
    return next((library for library in _LIBRARIES if library in parts), "other")


def place(path: str, name: str) -> str:
    """Return a short name of a function."""
    return f"{'/'.join(Path(path).parts[-2:])}: {name}"


def main() -> int:
    """Profile, print, and store where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true", help="put the tables into README.md")
    publish = parser.parse_args().publish
    try:
        made = SharedModel("yolox_nano", _IMAGES).make()
    except NotAvailable as reason:
        print(f"skipped: {reason}")
        return 0
    done = measure("benchmarks.profile_quantize:profiled", made)
    text = report(dict(done.facts), done.seconds)
    print(text)
    if publish:
        README.write_text(replace_section(README.read_text(), "profile", text))
    return 0


def report(facts: dict[str, Any], seconds: float) -> str:
    """Return the tables."""
    total = sum(facts["homes"].values())
    homes = sorted(facts["homes"].items(), key=lambda item: -item[1])
    opening = (
        f"One `quantize` of yolox_nano with {_PRESET} and {_IMAGES} images into an empty store: {seconds:.1f} s, in "
        f"which its threads were busy for {total:.1f} s. Time of compiled code counts for the Python code that calls "
        "it: under `onnxruntime` it is inference, under `quantry` mostly numpy."
    )
    return "\n\n".join(
        (
            opening,
            table(("stage", "seconds"), [(stage, f"{spent:.2f}") for stage, spent in facts["stages"]]),
            table(("code of", "thread seconds", "share"), [(h, f"{s:.2f}", f"{s / total:.0%}") for h, s in homes]),
            table(("function", "thread seconds"), [(name, f"{spent:.2f}") for name, spent in facts["functions"]]),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
