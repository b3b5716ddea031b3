"""Writes models, calibration samples and recipes of suites into one folder that can travel.

Run: python -m benchmarks.tuning.pack FOLDER SUITE RECIPE [RECIPE ...]
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from benchmarks.accuracy.suites import find_suite
from quantry.recipe import load_recipe, to_plain


def main(arguments: list[str] | None = None) -> int:
    """Add what the command line names to the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("suite")
    parser.add_argument("recipes", type=Path, nargs="+", help="recipe files; the stem names the run")
    given = parser.parse_args(arguments)
    pack(given.folder, given.suite, {path.stem: to_plain(load_recipe(path)) for path in given.recipes})
    return 0


def pack(folder: Path, suite: str, recipes: dict[str, dict[str, object]]) -> None:
    """Add a suite's model and samples, and runs of it, to a folder.

    Args:
        folder: Where to.
        suite: Name of the suite.
        recipes: Plain recipes by the name of the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = find_suite(suite)
    shutil.copyfile(found.model(), folder / f"{suite}.onnx")
    samples = list(found.calibration())
    arrays = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    np.savez_compressed(folder / f"{suite}.npz", **arrays)
    runs = folder / "runs.json"
    known = json.loads(runs.read_text()) if runs.exists() else {}
    known |= {name: {"suite": suite, "recipe": recipe} for name, recipe in recipes.items()}
    runs.write_text(json.dumps(known, indent=1))


if __name__ == "__main__":
    sys.exit(main())
