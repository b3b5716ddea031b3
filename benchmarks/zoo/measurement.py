"""What is done with one architecture. Runs in a process of its own, in the environment of the libraries."""

import contextlib
import io
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.zoo.architectures import ARCHITECTURES
from benchmarks.zoo.onnx_results import Entry, FloatModel, attempt, quantize, quantize_with_onnxruntime
from benchmarks.zoo.subject import Subject
from benchmarks.zoo.torch_results import quantize_in_torch, tensors
from benchmarks.zoo.weights import make_realistic

RECIPES = ("XINT8", "RECOMMENDED-CPU", "RECOMMENDED-NPU")
"""Recipes that every architecture is quantized with; one further preset comes in turn."""

OPSET = 18
"""The default of torch's new exporter; the old one gets an older one, as in files that are around."""

_OLD_OPSET = 13
_OLD_SHARE = 3
"""One architecture in three goes through the old exporter as well."""

_CALIBRATION, _HELD_OUT = 8, 16


def measure(name: str, folder: str) -> None:
    """Do everything with one architecture, and keep ``entry.json`` in the folder up to date on the way."""
    os.chdir(folder)
    _silence()
    entry: Entry = {}

    def keep(key: str, value: Any) -> None:
        entry[key] = value
        Path("entry.json").write_text(json.dumps(entry))

    from quantry import MemoryStore
    from quantry.recipe import PRESETS

    with contextlib.redirect_stdout(io.StringIO()):
        seed = crc32(name.encode())  # the same whatever else is measured
        subject, model = _float_model(name, seed, keep)
        if subject is None:
            return
        samples = _samples(subject, seed)
        if model is not None:
            store = MemoryStore()
            for recipe in RECIPES:
                keep(recipe, attempt(lambda recipe=recipe: quantize(model, recipe, store)))  # type: ignore[misc]
            keep("onnxruntime", attempt(lambda: quantize_with_onnxruntime(model)))
        keep("torch", attempt(lambda: quantize_in_torch(subject, model, samples)))
        if model is not None:
            others = [preset for preset in PRESETS if preset not in RECIPES]
            preset = others[seed % len(others)]
            keep(preset, attempt(lambda: quantize(model, preset, store)))
        if subject.both_exporters and not seed % _OLD_SHARE:
            keep("old exporter", attempt(lambda: _old(subject)))
    keep("done", {})


def _silence() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    import torch

    from quantry.runtime.threads import thread_count

    torch.set_num_threads(thread_count())


def _samples(subject: Subject, seed: int, count: int = _CALIBRATION) -> list[Any]:
    random = np.random.default_rng([seed, 1])
    return [subject.draw(random) for _ in range(count)]


def _float_model(name: str, seed: int, keep: Any) -> tuple[Subject | None, FloatModel | None]:
    built: list[Any] = []

    def build() -> Entry:
        import torch

        torch.manual_seed(seed)
        subject = ARCHITECTURES[name]()
        make_realistic(subject, seed)
        built.append(subject)
        return {"parameters": sum(weight.numel() for weight in subject.module.parameters())}

    def export() -> Entry:
        import torch

        subject = built[0]
        example = tensors(_samples(subject, seed, 1)[0])
        torch.onnx.export(
            subject.module,
            (),
            "float.onnx",
            kwargs={**example, **subject.settings},
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            verbose=False,
            external_data=False,
        )
        drawn = _samples(subject, seed, _CALIBRATION + _HELD_OUT)
        built.append(FloatModel(Path("float.onnx").absolute(), drawn[:_CALIBRATION], drawn[_CALIBRATION:]))
        return {"bytes": Path("float.onnx").stat().st_size}

    keep("built", attempt(build))
    if not built:
        return None, None
    keep("exported", attempt(export))
    return built[0], built[1] if len(built) > 1 else None


def _old(subject: Subject) -> Entry:
    """Export with the old exporter and quantize with XINT8; a model that it cannot export is not our concern."""
    import torch

    drawn = _samples(subject, 0, 6)
    example = tensors(drawn[0])
    path = Path("old.onnx").absolute()
    try:
        torch.onnx.export(
            subject.module,
            tuple(example.values()),
            path,
            dynamo=False,
            opset_version=_OLD_OPSET,
            input_names=list(example),
            verbose=False,
        )
        model = FloatModel(path, drawn[:3], drawn[3:])
    except Exception as error:
        return {"state": "not exported", "why": str(error).strip().splitlines()[0][:200] if str(error) else ""}
    return quantize(model, "XINT8", None)
