"""Scores quantized models of a folder on the labelled data of their suite.

Run: python -m benchmarks.tuning.score SUITE MODEL [MODEL ...] [--limit N]
"""

import argparse
import sys
from pathlib import Path

from benchmarks.accuracy.suites import find_suite


def main(arguments: list[str] | None = None) -> int:
    """Score the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=None)
    given = parser.parse_args(arguments)
    for model in given.models:
        score = find_suite(given.suite).score(model, given.limit)
        print(f"{given.suite} {model.stem}: {score.value:.4f} of {score.count} samples", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
