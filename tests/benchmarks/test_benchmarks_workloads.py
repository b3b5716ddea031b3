import time

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks.locations import NotAvailable, cache
from benchmarks.profile_quantize import home
from benchmarks.sampling_profiler import SamplingProfiler
from benchmarks.tasks.inference import infer, run_repeatedly
from benchmarks.tasks.onnxruntime_tool import quantize as quantize_with_onnxruntime
from benchmarks.tasks.output_quality import evaluate
from benchmarks.tasks.quantry_tool import observe, quantize, quantize_again
from benchmarks.tasks.samples import SampleReader
from benchmarks.workloads import ConvChain, EvaluatedModel, LargeModel, SharedModel
from benchmarks.workloads.sample_folder import write_samples

# A reader with get_next() is kept in a temporary file that closes only when it is collected.
closes_late = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("QUANTRY_BENCH_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def test_reader_gives_pixels_as_float_and_ends_with_none(tmp_path):
    samples = ({"x": np.full(2, value, np.uint8)} for value in (3, 4, 5))
    folder = write_samples(tmp_path / "samples", samples)
    reader = SampleReader(str(folder), 2)
    assert [reader.get_next()["x"].tolist() for _ in range(2)] == [[3, 3], [4, 4]]
    assert reader.get_next() is None


def test_reader_refuses_too_few_samples(tmp_path):
    folder = write_samples(tmp_path / "samples", [{"x": np.zeros(1)}])
    with pytest.raises(ValueError, match="2 samples wanted, 1 found"):
        SampleReader(str(folder), 2)


def test_conv_chain_is_valid_and_has_its_layers():
    made = ConvChain(3).make()
    model = onnx.load(made["model"])
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 3


def test_large_model_runs_with_weights_beside_it_and_is_removed():
    workload = LargeModel(width=64, layers=2)
    made = workload.make()
    session = onnxruntime.InferenceSession(made["model"], providers=["CPUExecutionProvider"])
    (result,) = session.run(None, SampleReader(made["samples"], 1).get_next())
    assert result.shape == (1, 64)
    assert 0.05 < result.std() < 20
    workload.discard()
    assert not list(cache().rglob("model.*"))


def test_large_model_says_when_disk_is_short():
    with pytest.raises(NotAvailable, match="disk"):
        LargeModel(width=1 << 16, layers=1 << 16).make()


def test_shared_model_says_where_data_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("QUANTRY_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotAvailable, match="QUANTRY_DATA"):
        SharedModel("yolox_nano", 4).make()


@pytest.mark.parametrize("task", [quantize, quantize_with_onnxruntime], ids=["quantry", "onnxruntime"])
@pytest.mark.filterwarnings("ignore")  # of the peer
def test_quantizing_task_writes_a_model(task, tmp_path):
    arguments = {"recipe": "S8S8_AAWS"} if task is quantize else {"per_channel": True}
    output = tmp_path / "q.onnx"
    facts = task(**ConvChain(2).make(), **arguments, output=str(output))()
    assert facts["bytes"] == output.stat().st_size
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(output).graph.node)


@pytest.mark.parametrize("factor", [0.9, 0.99])
def test_evaluation_reports_signal_to_noise_ratio_of_written_model(factor, tmp_path):
    made = ConvChain(2).make()
    model = onnx.load(made["model"])
    # After the last convolution comes only Relu, so the output shrinks as its constants do.
    for constant in model.graph.initializer:
        if constant.name in ("w1", "b1"):
            smaller = onnx.numpy_helper.to_array(constant) * np.float32(factor)
            constant.CopyFrom(onnx.numpy_helper.from_array(smaller, constant.name))
    output = str(tmp_path / "smaller.onnx")
    onnx.save(model, output)
    facts = evaluate(**made, output=output, held_out=made["samples"], held_out_count=3)()
    assert facts["sqnr_db"] == pytest.approx(-20 * np.log10(1 - factor), abs=1e-2)
    assert "3 held-out samples" in facts["note"]


def test_evaluation_knows_an_equal_model():
    made = ConvChain(2).make()
    facts = evaluate(**made, output=made["model"], held_out=made["samples"], held_out_count=2)()
    assert facts["sqnr_db"] == 150.0


def test_evaluated_model_says_where_data_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("QUANTRY_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotAvailable, match="QUANTRY_DATA"):
        EvaluatedModel(SharedModel("cifar10", 4), "q.onnx", held_out=4).make()


def test_evaluated_model_adds_held_out_samples_and_removes_what_was_written(monkeypatch):
    from benchmarks.tasks import suite

    class Numbers:
        def more_samples(self):
            return iter([{"x": np.full(1, number)} for number in range(6)])

    monkeypatch.setattr(suite, "find_suite", lambda _: Numbers())
    folder = cache() / "samples" / "held"
    assert suite.prepare_held_out("numbers", str(folder), 3, 2)() == {"count": 3}
    reader = SampleReader(str(folder), 3)
    assert [int(reader.get_next()["x"][0]) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(ValueError, match="4 held-out samples wanted, suite numbers has 3"):
        suite.prepare_held_out("numbers", str(cache() / "samples" / "more"), 4, 2)()
    written = cache() / "quantized" / "q.onnx"
    written.parent.mkdir(parents=True)
    written.touch()
    EvaluatedModel(SharedModel("numbers", 4), "q.onnx", held_out=3).discard()
    assert not written.exists()


@closes_late
def test_second_call_does_not_observe():
    facts = quantize_again(**ConvChain(2).make(), first="S8S8_AAWS", second="A8W8")()
    assert facts["stages"]["observe"].startswith("reused")


@closes_late
def test_observing_and_inference_tasks_run():
    made = ConvChain(2).make()
    assert observe(**made)() == {"tensors": 5, "samples": 4}
    assert infer(**made)() == {"samples": 4}
    assert run_repeatedly(**made, runs=2)()["milliseconds"] > 0


def test_profiler_finds_the_busy_function():
    def busy():
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            pass

    with SamplingProfiler() as profiler:
        busy()
    # Threads of the test runner that wait for input may be seen too.
    found = {name: seconds for (path, name), seconds in profiler.seconds.items() if path == __file__}
    assert found["busy"] > 0.05


def test_home_names_room_library_or_other():
    assert home("/x/src/quantry/observe/stage.py") == "quantry observe"
    assert home("/x/src/quantry/pipeline.py") == "quantry pipeline"
    assert home("/x/site-packages/onnx_ir/_core.py") == "onnx_ir"
    assert home("/x/lib/python3.11/json/decoder.py") == "other"
