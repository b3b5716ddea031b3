"""A stored score belongs to the arithmetic that it was computed with."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from target_models import network, samples

import quantry
from quantry.data.arrays import SequenceSource
from quantry.data.calibration_data import CalibrationData
from quantry.data.sample_cache import SampleCache
from quantry.evaluate.tasks import FloatAgreement
from quantry.memo import Memo, MemoryStore, Store
from quantry.targets import TARGETS, PlacedNode, on_target, simulated_for
from quantry.targets.backends import Backend, Runner


class _HalfOf(Runner):
    def __init__(self, content: Any) -> None:
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(self, feeds: Any) -> dict[str, Any]:
        names = [output.name for output in self._session.get_outputs()]
        return {name: array / 2 for name, array in zip(names, self._session.run(names, dict(feeds)), strict=True)}


class Halved(Backend):
    """A device that computes half of what the model says, so that its scores are far from those of the simulation."""

    name, product, licence, install, device = "halved", "fake", "none", "none", "CPU"

    def version(self) -> str:
        return "1"

    def placement(self, model: Any, feeds: Any) -> tuple[PlacedNode, ...]:
        return ()

    def open(self, model: Any, threads: int | None = None) -> Runner:
        return _HalfOf(model.to_bytes() if hasattr(model, "to_bytes") else str(model))


ARITHMETICS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "exact": nullcontext,
    "simulated": lambda: simulated_for("qnn-htp"),
    "device": lambda: on_target(replace(TARGETS["ort-cpu"], name="halved-device", backend=Halved())),
}


def _sqnr(store: Store | None, _: Path) -> float:
    return quantry.quantize(network(), samples(), "A8W8", store=store).evaluation.metrics["sqnr"].value


def _guarded(store: Store | None, _: Path) -> float:
    report = quantry.quantize(network(), samples(), "A8W8", store=store).guard
    assert report is not None
    return report.sqnr


def _closeness(store: Store | None, folder: Path) -> float:
    quantized = quantry.quantize(network(), samples(), "A8W8", store=None)
    ours, theirs = folder / "float.onnx", folder / "int8.onnx"
    ours.write_bytes(network().SerializeToString())
    quantized.save(theirs)
    data = CalibrationData(SequenceSource(samples()), quantized.stages.prepared.value.inputs)
    return FloatAgreement(ours, SampleCache(data), memo=Memo(store))(theirs)


@pytest.mark.parametrize("score", [_sqnr, _guarded, _closeness])
def test_a_stored_score_is_that_of_its_arithmetic(score: Callable[[Store | None, Path], float], tmp_path: Path) -> None:
    store = MemoryStore()
    values = []
    for computing in ARITHMETICS.values():
        with computing():
            values.append(score(None, tmp_path))
            assert score(store, tmp_path) == values[-1]
    assert len(np.unique(values)) == len(ARITHMETICS)


def test_one_result_is_compared_anew_in_each_arithmetic() -> None:
    result = quantry.quantize(network(), samples(), "A8W8", store=None)
    exact = result.evaluation.metrics["sqnr"].value
    with ARITHMETICS["device"]():
        assert result.evaluation.metrics["sqnr"].value < exact - 10
    assert result.evaluation.metrics["sqnr"].value == exact
