"""Real models from the wild: each is quantized, loaded in both kinds of session and compared with its float self."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from zoo_models import ZOO, Sample

from quantry import MemoryStore, quantize
from quantry.runtime.sessions import deployment_session, simulation_session

pytestmark = pytest.mark.zoo


@pytest.fixture(scope="module")
def stores() -> Iterator[dict[str, MemoryStore]]:
    return {name: MemoryStore() for name in ZOO}


def found(name: str) -> Path:
    path = ZOO[name].find()
    if path is None:
        pytest.skip(f"{ZOO[name].package} is not installed")
    return path


def run(session: ort.InferenceSession, samples: list[Sample]) -> list[np.ndarray]:
    """Return each output, flattened over all samples."""
    outputs = [session.run(None, sample) for sample in samples]
    return [np.concatenate([np.ravel(part) for part in parts]) for parts in zip(*outputs, strict=True)]


def float_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Several sessions live at once; threads that spin while they wait would take each other's time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(path, options)


def sqnr(reference: np.ndarray, other: np.ndarray) -> float:
    reference, other = reference.astype(np.float64), other.astype(np.float64)
    noise = np.square(reference - other).sum()
    return 200.0 if noise == 0 else float(10 * np.log10(np.square(reference).sum() / noise))


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for name in ZOO for preset in ZOO[name].floors])
def test_real_model_is_quantized_and_runs(name: str, preset: str, stores: dict[str, MemoryStore]) -> None:
    path, samples = found(name), ZOO[name].samples()
    result = quantize(path, samples, preset, store=stores[name])
    assert all(entry.reason for entry in result.declined)
    nodes = {node.name for node in result.stages.equalized.value.model.graph}
    assert nodes == set(result.plan.quantized_nodes) | {entry.node for entry in result.declined}

    content = result.to_bytes()
    reference = float_session(path)
    simulated, deployed = simulation_session(content, interleaved=True), deployment_session(content, interleaved=True)
    for described in ("get_inputs", "get_outputs"):
        expected = [(value.name, value.type) for value in getattr(reference, described)()]
        assert [(value.name, value.type) for value in getattr(deployed, described)()] == expected
    floor = ZOO[name].floors[preset]
    outputs = zip(run(reference, samples), run(simulated, samples), run(deployed, samples), strict=True)
    for expected, ours, shipped in outputs:
        assert np.isfinite(ours).all()
        assert np.isfinite(shipped).all()
        assert sqnr(expected, ours) >= floor
        assert sqnr(expected, shipped) >= floor


@pytest.mark.parametrize("name", ZOO)
def test_real_model_keeps_its_free_axes(name: str, stores: dict[str, MemoryStore]) -> None:
    path, other = found(name), ZOO[name].other()
    preset = next(iter(ZOO[name].floors))
    content = quantize(path, ZOO[name].samples(), preset, store=stores[name]).to_bytes()
    expected = float_session(path).run(None, other)
    got = deployment_session(content, interleaved=True).run(None, other)
    assert [array.shape for array in got] == [array.shape for array in expected]
    assert all(np.isfinite(array).all() for array in got)
