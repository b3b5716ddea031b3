"""Quantize many mutated models and count what happened: ``python -m benchmarks.fuzz --count 2000``.

Wanted: a result that onnx.checker and onnxruntime accept wherever they accept the float model, or a `UserError`.
Everything else is printed with the seed that repeats it, and makes the exit status 1. Each model is quantized in a
worker process, because a crash or an endless run must be counted as well.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from benchmarks.fuzz.outcome import Outcome
from benchmarks.fuzz.sweep import model_of, outcomes


def main() -> int:
    """Run the sweep; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=2000, help="number of models")
    parser.add_argument("--keep", type=Path, help="folder for the models that failed")
    parser.add_argument("--refusals", action="store_true", help="also print valid models that were refused")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed, outcome in outcomes(range(options.first, options.first + options.count)):
        counts[outcome.kind] += 1
        if outcome.is_failure or (options.refusals and outcome.kind == "refused a valid model"):
            print(seed, outcome.kind, outcome.detail, flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{seed}.onnx").write_bytes(model_of(seed))
    print(dict(counts.most_common()))
    return int(any(Outcome(kind, "").is_failure for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
