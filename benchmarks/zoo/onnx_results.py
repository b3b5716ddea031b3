"""Quantizes a float ONNX model in several ways, and compares what was written with it in onnxruntime."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tasks.inference import open_session
from benchmarks.zoo.subject import Sample
from quantry.runtime.threads import thread_count

Entry = dict[str, Any]


class InvalidResult(Exception):  # noqa: N818 - a finding, not a fault of this program
    """What was written does not load, does not run, or is not finite where the float model is."""


def attempt(job: Callable[[], Entry]) -> Entry:
    """Return what a job tells, with its state and time.

    The state is "ok", "refused" for an error that names what the user must change, "invalid", or "raised".
    """
    from quantry.errors import UserError

    started = time.perf_counter()
    try:
        entry = {"state": "ok", **job()}
    except UserError as error:
        entry = {"state": "refused", "why": _text(error)}
    except InvalidResult as error:
        entry = {"state": "invalid", "why": _text(error)}
    except MemoryError:
        raise
    except Exception as error:
        origin = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        entry = {"state": "raised", "why": f"{_text(error)} at {Path(origin.filename).name}:{origin.lineno}"}
    return {**entry, "seconds": round(time.perf_counter() - started, 1)}


def _text(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:400]


class FloatModel:
    """A float ONNX file, with its results on held-out samples.

    Args:
        path: The file.
        calibration: Samples to calibrate with.
        held_out: Samples to compare on.
    """

    def __init__(self, path: Path, calibration: list[Sample], held_out: list[Sample]) -> None:
        self.path = path
        session = open_session(str(path), thread_count())
        names = {port.name for port in session.get_inputs()}
        # An exporter drops inputs that no result depends on, such as a mask that is not used.
        self.calibration, self.held_out = (
            [{name: value for name, value in sample.items() if name in names} for sample in samples]
            for samples in (calibration, held_out)
        )
        self.results = [session.run(None, sample) for sample in self.held_out]

    def compare(self, path: Path) -> Entry:
        """Return the signal-to-noise ratio of a quantized model, loaded as users load it: with all optimizations.

        Each output counts as much as the others, whatever the size of its values.

        Raises:
            InvalidResult: It does not load, does not run, or is not finite.
        """
        from quantry.evaluate.metrics.metric import decibels

        try:
            session = open_session(str(path), thread_count())
            found = [session.run(None, sample) for sample in self.held_out]
        except Exception as error:
            raise InvalidResult(f"onnxruntime: {error}") from error
        shares = []
        for place, first in enumerate(self.results[0]):
            if not np.issubdtype(first.dtype, np.floating):
                continue
            exact = np.stack([result[place] for result in self.results]).astype(np.float64)
            ours = np.stack([result[place] for result in found]).astype(np.float64)
            finite = np.isfinite(exact)
            if not np.isfinite(ours[finite]).all():
                raise InvalidResult(f"output {place} is not finite")
            signal = float(np.square(exact[finite]).sum())
            if signal:
                shares.append(float(np.square(ours[finite] - exact[finite]).sum()) / signal)
        if not shares:
            return {}
        return {"dB": round(min(200.0, decibels(1.0, float(np.mean(shares)))), 2)}


def quantize(model: FloatModel, recipe: str, store: Any) -> Entry:
    """Quantize with a recipe of quantry, write the result and compare it."""
    import quantry

    result = quantry.quantize(model.path, model.calibration, recipe, store=store)
    output = model.path.with_name("quantized.onnx")
    result.save(output)
    guard = result.guard
    told = {"warns": True} if guard is not None and guard.notes else {}
    return {**model.compare(output), "bytes": output.stat().st_size, **told}


def quantize_with_onnxruntime(model: FloatModel) -> Entry:
    """Do the same with onnxruntime's quantizer: uint8 activations, int8 weights with a scale for each channel."""
    from benchmarks.tasks.onnxruntime_tool import quantize as oracle

    folder = model.path.with_name("samples")
    folder.mkdir(exist_ok=True)
    for number, sample in enumerate(model.calibration):
        np.savez(folder / f"{number:03}.npz", **sample)
    output = model.path.with_name("oracle.onnx")
    oracle(str(model.path), str(folder), len(model.calibration), output=str(output), per_channel=True)()
    return {**model.compare(output), "bytes": output.stat().st_size}
