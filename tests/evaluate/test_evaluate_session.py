"""Evaluation sessions: the numbers of the graph, on integer kernels where the machine's are trusted."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import quantry
from quantry import demo
from quantry.demo.evaluation import image_tensor
from quantry.demo.scenes import calibration_scenes
from quantry.emit import may_use_exact_integers, use_exact_integers
from quantry.errors import DataError, ModelError
from quantry.evaluate import arithmetic as module
from quantry.evaluate.arithmetic import EXACT, integer_kernels_agree
from quantry.evaluate.tasks.task_evaluator import run_samples
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
        session = EXACT.open(model, threads=1)
        for feeds in images:
            assert _equal(run_session(exact, feeds), run_session(session, feeds))


@pytest.mark.parametrize(
    ("recipe", "products"),
    [("XINT8", True), ("VINT8", True), ("RECOMMENDED-NPU-W4A8", None), ("S8S8_AAWS", False), ("CPU_INT8", False)],
)
def test_a_glance_at_the_file_tells_whether_integer_kernels_may_help(tmp_path, recipe, products):
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        { c = Conv(x, w) y = Relu(c) }"""
    )
    weight = np.random.default_rng(0).normal(size=(4, 4, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    samples = [{"x": np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)}]
    quantry.quantize(model, samples, recipe).save(path)
    may = may_use_exact_integers(onnx.load(path))
    replaced = use_exact_integers(ir.load(path))
    assert may or not replaced
    assert products is None or may is products is bool(replaced)


def test_kernels_that_disagree_are_not_used(detector, monkeypatch):
    _, path, images = detector
    edited = []
    monkeypatch.setattr(module, "integer_kernels_agree", lambda: False)
    monkeypatch.setattr(module, "use_exact_integers", edited.append)
    session = EXACT.open(path)
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
    session = EXACT.open(demo.model_path())
    assert session.get_outputs()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        EXACT.open(broken)


def test_samples_that_run_together_have_the_outputs_of_one_by_one_in_order():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[n, 3] x) => (float[n, 3] y) { y = Softmax(x) }"""
    )
    session = simulation_session(model.SerializeToString(), threads=1)
    generator = np.random.default_rng(0)
    # Samples of very different sizes finish in another order than they start.
    arrays = [generator.normal(size=(size, 3)).astype(np.float32) for size in (200_000, 1, 50_000, 2, 3)]
    samples = [(index, {"x": array}) for index, array in enumerate(arrays)]
    expected, got = (list(run_samples(session, samples, together)) for together in (1, 3))
    assert [index for index, _, _ in got] == [0, 1, 2, 3, 4]
    for (_, feeds, one), (_, _, other) in zip(expected, got, strict=True):
        assert np.array_equal(one["y"], other["y"])
        assert len(one["y"]) == len(feeds["x"])


def test_sample_that_cannot_run_is_an_error_also_next_to_others():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }"""
    )
    session = simulation_session(model.SerializeToString(), threads=1)
    samples = [(index, {"x": np.zeros((1, 3 if index != 2 else 4), np.float32)}) for index in range(6)]
    with pytest.raises(DataError, match="the model must be able to run"):
        list(run_samples(session, samples, 2))
