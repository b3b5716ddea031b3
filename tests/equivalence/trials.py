"""Trials for the law of the memo: recipes that share as many stages as possible, on two models.

Run as a program, it does all trials on a directory store in a given order and prints a digest for each model:
``python trials.py STORE SEED``.
"""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
from equivalence_models import cnn, samples, transformer

from quantry import quantize
from quantry.memo import DirectoryStore, Store
from quantry.recipe import (
    PRESETS,
    Entropy,
    NonOverflow,
    Percentile,
    Recipe,
    ScaleOptions,
    Selection,
)

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"cnn": cnn, "transformer": transformer}

Trial = tuple[str, str]


def _variants() -> dict[str, Recipe]:
    base = PRESETS["U8S8_AAWS"].recipe
    return {
        **{name: PRESETS[name].recipe for name in ("XINT8", "U8S8_AAWS", "CPU_INT8")},
        "entropy": replace(base, scale=ScaleOptions(activation=Entropy())),
        "low-percentile": replace(base, scale=ScaleOptions(activation=Percentile(99.0), weight=NonOverflow())),
        "partly-float": replace(base, plan=replace(base.plan, selection=Selection(exclude=("^residual",)))),
        "first-sample": replace(base, observe=replace(base.observe, samples=1)),
        "batch-norm-kept": replace(base, prepare=replace(base.prepare, fold_batch_norm=False)),
    }


RECIPES = _variants()
TRIALS: tuple[Trial, ...] = tuple((model, recipe) for model in MODELS for recipe in RECIPES)


def shuffled(seed: int) -> list[Trial]:
    """Return the trials in a random order."""
    order = list(TRIALS)
    random.Random(seed).shuffle(order)
    return order


def run_trial(trial: Trial, store: Store | None) -> bytes:
    """Return the bytes of one trial's model; model and data are created again."""
    name, recipe = trial
    model = MODELS[name]()
    return quantize(model, samples(model), RECIPES[recipe], store=store).to_bytes()


def run_trials(order: list[Trial], store: Store | None) -> dict[Trial, str]:
    """Return a digest of each trial's model."""
    return {trial: hashlib.sha256(run_trial(trial, store)).hexdigest() for trial in order}


if __name__ == "__main__":
    results = run_trials(shuffled(int(sys.argv[2])), DirectoryStore(Path(sys.argv[1])))
    sys.stdout.write(json.dumps([[*trial, digest] for trial, digest in results.items()]))
