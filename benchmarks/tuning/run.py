"""Quantizes every run of a packed folder; needs neither labels nor the shared data.

Run: python -m benchmarks.tuning.run FOLDER OUTPUT [NAME ...]
"""

import argparse
import json
import logging
import sys
import time
import traceback
from pathlib import Path

import numpy as np


def main(arguments: list[str] | None = None) -> int:
    """Quantize the runs that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--store", default=None, help="directory of the store; runs of one suite share stages in it")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("quantry.tune").setLevel(logging.DEBUG)
    given.output.mkdir(parents=True, exist_ok=True)
    runs = json.loads((given.folder / "runs.json").read_text())
    for name in given.names or runs:
        try:
            _run(given.folder, given.output, name, runs[name], given.store)
        except Exception:
            # One run that fails must not cost the others their machine.
            traceback.print_exc()
    return 0


def _run(folder: Path, output: Path, name: str, run: dict[str, object], store: str | None) -> None:
    import quantry

    arrays = np.load(folder / f"{run['suite']}.npz")
    inputs = {key: arrays[key] for key in arrays.files}
    count = len(next(iter(inputs.values())))
    samples = [{key: _as_fed(array[at]) for key, array in inputs.items()} for at in range(count)]
    started = time.perf_counter()
    result = quantry.quantize(folder / f"{run['suite']}.onnx", samples, run["recipe"], store=store)
    result.save(output / f"{name}.onnx")
    print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    for line in (
        *(f"{entry.stage} {entry.outcome} {entry.seconds:.1f} s" for entry in result.trace.entries),
        *result.notes,
    ):
        print(f"    {line}", flush=True)


def _as_fed(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.uint8 else array


if __name__ == "__main__":
    sys.exit(main())
