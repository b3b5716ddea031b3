"""Evaluation sessions: the numbers of the graph, on integer kernels where the machine's are trusted."""

import numpy as np
import pytest

import quantry
from quantry import demo
from quantry.demo.evaluation import image_tensor
from quantry.demo.scenes import calibration_scenes
from quantry.errors import ModelError
from quantry.evaluate import evaluation_session as module
from quantry.evaluate.evaluation_session import evaluation_session, integer_kernels_agree
from quantry.runtime.sessions import run_session, simulation_session


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    images = [{"images": image_tensor(scene)} for scene in calibration_scenes(4)]
    result = quantry.quantize(demo.model_path(), data=images, recipe="XINT8")
    path = tmp_path_factory.mktemp("detector") / "xint8.onnx"
    result.quantized.save(path)
    return result.quantized, path, images


def _equal(one, other):
    return all(np.array_equal(other[name], value) for name, value in one.items())


def test_integer_kernels_of_this_machine_are_tested_once():
    assert integer_kernels_agree() is integer_kernels_agree()


def test_scores_come_from_the_same_bits_in_memory_and_from_a_file(detector):
    quantized, path, images = detector
    exact = simulation_session(path)
    for model in (quantized, path, str(path)):
        session = evaluation_session(model, threads=1)
        for feeds in images:
            assert _equal(run_session(exact, feeds), run_session(session, feeds))


def test_kernels_that_disagree_are_not_used(detector, monkeypatch):
    _, path, images = detector
    edited = []
    monkeypatch.setattr(module, "integer_kernels_agree", lambda: False)
    monkeypatch.setattr(module, "use_exact_integers", edited.append)
    session = evaluation_session(path)
    assert not edited
    assert _equal(run_session(simulation_session(path), images[0]), run_session(session, images[0]))


def test_a_probe_with_other_results_is_noticed(monkeypatch):
    real = module.run_session
    runs = []

    def disagreeing(session, feeds):
        runs.append(session)
        outputs = real(session, feeds)
        return outputs if len(runs) % 2 else {name: value + 1 for name, value in outputs.items()}

    monkeypatch.setattr(module, "run_session", disagreeing)
    assert not integer_kernels_agree.__wrapped__()


def test_float_models_and_broken_files(tmp_path):
    session = evaluation_session(demo.model_path())
    assert session.get_outputs()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        evaluation_session(broken)
