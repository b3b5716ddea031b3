"""Scores, comparisons and diagnoses with the arithmetic of a target."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from target_models import installed, network, samples
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.diagnosis import diagnose_pair
from quantry.errors import ModelError, RecipeError
from quantry.evaluate.latency import summarize_pairs
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.memo import MemoryStore
from quantry.report import write_report
from quantry.targets import PlacedNode, measure_on_target, on_target, place, slow_because
from quantry.targets.backends import OrtCpu
from quantry.targets.compare import compare_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    onnx.save(network(), path / "float.onnx")
    np.save(path / "x.npy", np.concatenate([sample["x"] for sample in samples()]))
    for target in ("ort-cpu", "qnn-htp", "openvino-cpu"):
        quantry.quantize(network(), samples(), "CPU_INT8", target=target, store=None).save(path / f"{target}.onnx")
    return path


def evaluator(folder: Path) -> OutputDistance:
    inputs = input_signatures(model_source(folder / "float.onnx").load())
    return OutputDistance(folder / "float.onnx", SampleCache(calibration_data(folder / "x.npy", inputs)), "sqnr")


@pytest.mark.parametrize(("backend", "target"), [("qnn", "qnn-htp"), ("openvino", "openvino-cpu")])
def test_evaluator_runs_on_the_target_inside_of_the_block_only(folder: Path, backend: str, target: str) -> None:
    installed(backend)
    simulated = evaluator(folder)(folder / f"{target}.onnx")
    with on_target(target):
        on_device = evaluator(folder)(folder / f"{target}.onnx")
    # OpenVINO's integers agree with the simulation on this model; those of HTP do not.
    assert (on_device != simulated) == (backend == "qnn")
    assert abs(on_device - simulated) < 12
    assert evaluator(folder)(folder / f"{target}.onnx") == simulated


def test_outputs_of_a_target_are_stored_by_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with on_target("ort-cpu", store):
        first = evaluator(folder)(folder / "ort-cpu.onnx")
    monkeypatch.setattr(OrtCpu, "open", lambda self, model, threads=None: pytest.fail("it must not run again"))
    with on_target("ort-cpu", store):
        assert evaluator(folder)(folder / "ort-cpu.onnx") == first


def test_target_with_rules_only_cannot_run() -> None:
    with pytest.raises(RecipeError, match="must have a backend that runs models, got vitisai"), on_target("vitisai"):
        pass


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._samples = iter(samples())

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def test_model_of_onnxruntimes_quantizer_is_compared_and_diagnosed(folder: Path, tmp_path: Path) -> None:
    quantize_static(folder / "float.onnx", tmp_path / "ort.onnx", Reader())
    found = compare_models(folder / "float.onnx", tmp_path / "ort.onnx", samples())
    assert found.samples == 4
    assert 10 < found.metrics["sqnr"].value < 60
    same = compare_models(folder / "float.onnx", folder / "float.onnx", samples())
    assert same.metrics["sqnr"].value > 140
    diagnosis = diagnose_pair(folder / "float.onnx", tmp_path / "ort.onnx", samples())
    assert diagnosis.falls
    assert diagnosis.gathered["y"] == pytest.approx(found.metrics["sqnr"].value, abs=3)


def test_outputs_with_other_names_are_paired_by_position(folder: Path) -> None:
    renamed = network()
    renamed.graph.node[-1].output[0] = renamed.graph.output[0].name = "scores"
    assert compare_models(folder / "float.onnx", renamed, samples()).metrics["sqnr"].value > 140
    other = network()
    other.graph.output.append(onnx.helper.make_tensor_value_info("f1", onnx.TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="must have the same outputs"):
        compare_models(folder / "float.onnx", other, samples())


def test_diagnosis_finds_where_the_target_departs(folder: Path) -> None:
    installed("qnn")
    found = diagnose_pair(folder / "float.onnx", folder / "qnn-htp.onnx", samples(), "qnn-htp", 2)
    assert found.departures is not None
    assert found.on_target is not None
    assert found.on_target.metrics["sqnr"].value > 20


def test_placement_names_the_rule_that_a_model_breaks() -> None:
    installed("qnn")
    dynamic = quantry.quantize(network(), samples(), "CPU_INT8", store=None).to_bytes()
    found = place(dynamic, "qnn-htp", samples(1)[0])
    assert len(found.elsewhere) == len(found.nodes)
    assert all("rule 'static shapes': input 'x'" in entry.why for entry in found.nodes)


def test_quantized_model_that_does_not_win_is_named_with_its_costly_nodes() -> None:
    nodes = (
        PlacedNode("conv", "Conv", "Conv", "conv", "float", "CPU", 3.0, "no integer kernel"),
        PlacedNode("q", "QuantizeLinear", "QuantizeLinear", "q", "int8", "CPU", 1.0),
        PlacedNode("fast", "Conv", "QLinearConv", "fast", "uint8", "CPU", 9.0),
    )
    slow = slow_because(summarize_pairs(np.array([[10.0, 12.0]])), nodes, "ort-cpu")
    assert slow is not None
    assert slow.startswith("int8 does not win on ort-cpu: 0.83x the speed of float")
    assert slow.endswith("it costs most in conv (Conv, 3.00 ms), q (QuantizeLinear, 1.00 ms)")
    assert slow_because(summarize_pairs(np.array([[10.0, 9.0]])), nodes, "ort-cpu") is None
    reference = tuple(
        PlacedNode(name, "Conv", "Conv", name, "float", "CPU", ms) for name, ms in (("conv", 4.0), ("fast", 5.0))
    )
    told = slow_because(summarize_pairs(np.array([[10.0, 12.0]])), nodes, "ort-cpu", reference)
    assert told is not None
    assert told.endswith("it costs most in fast (QLinearConv, 9.00 ms), q (QuantizeLinear, 1.00 ms)")


def test_latency_is_measured_on_devices_only(folder: Path) -> None:
    latency = measure_on_target("ort-cpu", folder / "float.onnx", folder / "ort-cpu.onnx", samples(1)[0], 3)
    assert latency.runs == 3
    if installed("qnn").emulated:
        with pytest.raises(RecipeError, match="its times mean nothing"):
            measure_on_target("qnn-htp", folder / "float.onnx", folder / "qnn-htp.onnx", samples(1)[0], 3)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_commands_compare_diagnose_evaluate_and_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTRY_CACHE", str(folder / "cache"))
    pair = folder / "float.onnx", folder / "ort-cpu.onnx", "--data", folder / "x.npy"
    assert "sqnr" in run("compare", *pair, "--latency", 3)
    assert "Where accuracy is lost" in run("diagnose", *pair)
    placed = run("placement", folder / "ort-cpu.onnx", "--target", "ort-cpu", "--data", folder / "x.npy")
    assert "QLinearConv" in placed
    scored = ("evaluate", folder / "ort-cpu.onnx", "--float", folder / "float.onnx", "--metric", "sqnr")
    told = run(*scored, "--data", folder / "x.npy", "--target", "ort-cpu")
    assert "simulation sqnr" in told
    assert "target minus simulation" in told


def test_report_shows_where_nodes_run_and_what_they_are_fused_into(tmp_path: Path) -> None:
    result = quantry.quantize(network(), samples(), "CPU_INT8", target="ort-cpu", store=None)
    page = write_report(result, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Where it runs" in page
    assert "QLinearConv" in page
    assert "fused into" in page
