"""What a user writes, fully typed: `make check-types` checks it with mypy and pyright, both strict. It is not run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import quantry
from quantry.errors import QuantryError
from quantry.evaluate import Metric
from quantry.recipe import DataType, MinMSE, Percentile, PerChannel, PlanOptions, Recipe, ScaleOptions, TensorSpec

Float = npt.NDArray[np.float32]


class Reader:
    """Calibration data with the interface of onnxruntime."""

    def __init__(self, count: int) -> None:
        self._samples: Iterator[Float] = iter([np.zeros((1, 3, 8, 8), np.float32)] * count)

    def get_next(self) -> dict[str, Float] | None:
        """Return the next sample, or None at the end."""
        sample = next(self._samples, None)
        return None if sample is None else {"x": sample}


class LargestError(Metric):
    """Largest difference of an output."""

    name = "largest error"
    higher_is_better = False
    best = 0.0
    worst = float("inf")

    def formula(self, reference: npt.NDArray[np.float64], quantized: npt.NDArray[np.float64]) -> float:
        """Return the metric of one output."""
        return float(np.abs(reference - quantized).max())


def score(path: Path) -> float:
    """Return how good a model is."""
    return float(path.stat().st_size)


def agreement(outputs: Sequence[npt.NDArray[np.generic]]) -> float:
    """Return how good outputs are."""
    return float(len(outputs))


def quantize(model: Path) -> tuple[Path, ...]:
    """Quantize a model in several ways and return the written files."""
    mine = Recipe(
        plan=PlanOptions(
            activation=TensorSpec(DataType.UINT8, symmetric=False), weight=TensorSpec(granularity=PerChannel())
        ),
        scale=ScaleOptions(activation=Percentile(99.99), weight=MinMSE()),
    )
    pixels = quantry.ImageOptions(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scale=1 / 255)
    result = quantry.quantize(model, data="images/", recipe=mine, images=pixels, store=quantry.MemoryStore())
    result = quantry.quantize(model, data=Reader(4), target="vitisai", score=agreement)
    decibels: float = result.evaluation.metrics["sqnr"].value
    reasons: list[str] = [f"{declined.node}: {declined.reason}" for declined in result.declined]
    for entry in result.trace.entries:
        print(entry.stage, entry.seconds)
    quantry.write_report(result, "report.html")
    diagnosis: quantry.Diagnosis = quantry.diagnose(result)
    print(decibels, reasons, diagnosis)
    return result.save("model.int8.onnx")


def search(model: Path) -> Recipe | None:
    """Search a recipe and return the best."""
    try:
        found = quantry.search(model, Reader(8), score, tolerance="1%", budget="30min", n_jobs=2)
    except QuantryError as error:
        raise SystemExit(str(error)) from error
    numbers: list[float] = [trial.score for trial in found.trials if trial.score is not None]
    quantry.write_search_report(found, "search.html")
    print(numbers, found.best_model, found.best_recipe)
    return found.best.recipe if found.best else None
