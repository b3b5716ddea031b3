"""Backends run models, refuse what does not fit, and say what ran where. They skip where a library is missing."""

import json
import os
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from target_models import installed, network, noise, samples

import quantry
from quantry.errors import MissingExtraError, ModelError
from quantry.runtime.sessions import deployment_session
from quantry.targets import BACKENDS, TARGETS, PlacedNode, backend_of, on_target

OF_BACKEND = {"ort-cpu": "ort-cpu", "qnn": "qnn-htp", "openvino": "openvino-cpu", "ort-web": "ort-web"}


@pytest.fixture(scope="module")
def written() -> dict[str, bytes]:
    return {
        target: quantry.quantize(network(), samples(), "CPU_INT8", target=target, store=None).to_bytes()
        for target in OF_BACKEND.values()
    }


@pytest.mark.parametrize("name", BACKENDS)
def test_backend_computes_what_the_cpu_provider_computes(name: str, written: dict[str, bytes]) -> None:
    backend = installed(name)
    model = written[OF_BACKEND[name]]
    runner = backend.open(model)
    (expected,) = deployment_session(model).run(None, samples(1)[0])
    outputs = runner.run(samples(1)[0])
    assert runner.milliseconds(samples(1)[0]) > 0
    runner.close()
    assert [*outputs] == ["y"]
    # One step of the last quantizer apart at most, on a model of four layers.
    assert noise(expected, outputs["y"]) > 25


@pytest.mark.parametrize("name", BACKENDS)
def test_backend_refuses_a_broken_model_with_its_own_message(name: str) -> None:
    with pytest.raises(ModelError, match=r"must be able to load the model, got .+"):
        installed(name).open(b"not a model")


@pytest.mark.parametrize("name", BACKENDS)
def test_placement_has_every_operator(name: str, written: dict[str, bytes]) -> None:
    table = installed(name).placement(written[OF_BACKEND[name]], samples(1)[0])
    operators = [entry.operator for entry in table if not entry.operator.endswith("quantizeLinear")]
    expected = ["Conv", "Clip", "Sigmoid", "Mul", "Conv", "Relu", "Add", "Concat", "GlobalAveragePool", "Flatten"]
    assert [operator for operator in operators if operator != "QuantizeLinear"] == [*expected, "Gemm"]


def by_operator(table: tuple[PlacedNode, ...], operator: str) -> list[PlacedNode]:
    return [entry for entry in table if entry.operator == operator]


def test_cpu_provider_runs_integer_kernels_and_names_what_stays_float() -> None:
    backend = installed("ort-cpu")
    fast = quantry.quantize(network(), samples(), "CPU_INT8", store=None).to_bytes()
    slow = quantry.quantize(network(), samples(), "A16W8", store=None).to_bytes()
    fast_table, slow_table = (backend.placement(model, samples(1)[0]) for model in (fast, slow))
    assert {(entry.kernel, entry.precision) for entry in by_operator(fast_table, "Conv")} == {("QLinearConv", "uint8")}
    assert {entry.why for entry in fast_table} <= {"", "removed by the optimizer"}
    assert all(entry.precision == "float" for entry in by_operator(slow_table, "Conv"))
    assert all("no integer kernel" in entry.why or "in float" in entry.why for entry in by_operator(slow_table, "Conv"))
    assert any(entry.milliseconds for entry in by_operator(fast_table, "Conv"))


def test_function_that_a_float_convolution_computes_belongs_to_it() -> None:
    weights = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,16,32,32] x) => (float[1,16,15,15] y) {
        [conv] c = Conv(x, w) [relu] r = Relu(c) [pool] y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    feeds = {"x": np.zeros((1, 16, 32, 32), np.float32)}
    conv, relu, pool = installed("ort-cpu").placement(model.SerializeToString(), feeds)
    assert (conv.kernel, conv.unit, relu.kernel, relu.unit) == ("Conv", "conv", "Conv", "conv")
    assert conv.milliseconds is not None
    assert relu.milliseconds is None
    assert (pool.kernel, pool.unit) == ("MaxPool", "pool")


def test_openvino_runs_convolutions_in_eight_bits() -> None:
    backend = installed("openvino")
    # A recommended preset may leave a Conv of so small a network float, if that is faster here.
    model = quantry.quantize(network(), samples(), "CPU_INT8", target="openvino-cpu", store=None).to_bytes()
    table = backend.placement(model, samples(1)[0])
    assert {entry.precision for entry in by_operator(table, "Conv")} <= {"uint8", "int8"}


def test_htp_takes_the_whole_graph_of_accepted_presets_and_names_refused_nodes() -> None:
    backend = installed("qnn")
    for preset in ("A8W8", "RECOMMENDED-HTP-16"):
        model = quantry.quantize(network(), samples(), preset, target="qnn-htp", store=None).to_bytes()
        table = backend.placement(model, samples(1)[0])
        assert {entry.device for entry in table} == {"HTP"}
        assert "float" not in {entry.precision for entry in table}
    assert by_operator(table, "Relu")[0].unit == by_operator(table, "Conv")[1].node
    refused = quantry.quantize(network(), samples(), "A16W8", target="ort-cpu", store=None).to_bytes()
    with pytest.raises(ModelError):
        backend.open(refused)


def test_missing_backend_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of("openvino-cpu")
    assert backend is not None
    monkeypatch.setattr(type(backend), "version", lambda self: None)
    with pytest.raises(MissingExtraError, match=r"pip install quantry\[openvino\] \(licence: Apache-2.0\)"):
        backend.open(b"")
    with pytest.raises(MissingExtraError, match="found no OpenVINO"), on_target("openvino-cpu"):
        pass


def test_targets_with_rules_only_have_no_backend() -> None:
    assert {name for name in TARGETS if backend_of(name) is None} == {
        "vitisai",
        "openvino-npu",
        "tensorrt",
        "stm32n6",
        "npu-int8",
    }
    assert np.all([backend.licence for backend in BACKENDS.values()])


def profiled(model: bytes, folder: Path) -> Counter[str]:
    """Return the kernels in onnxruntime's own profile, by operator."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    shapes = {
        value.name: [size if isinstance(size, int) else 1 for size in value.shape] for value in session.get_inputs()
    }
    session.run(None, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(e["args"]["op_name"] for e in events if e.get("name", "").endswith("_kernel_time"))


@pytest.mark.parametrize("name", ["network", "cifar10/resnet20.onnx", "mobilenetv2_035/mobilenetv2_035.onnx"])
@pytest.mark.parametrize("preset", ["CPU_INT8", "A8W8"])
def test_placement_agrees_with_the_profile_of_onnxruntime(name: str, preset: str, tmp_path: Path) -> None:
    root = Path(os.environ.get("QUANTRY_DATA") or Path(__file__).parents[3] / "shared" / "data")
    file = root / name
    if name != "network" and not file.exists():
        pytest.skip(f"no {name} in the shared data; set QUANTRY_DATA")
    source = network() if name == "network" else file
    # Ranges do not decide about kernels.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantry.quantize(source, None, preset, target="ort-cpu", store=None).to_bytes()
    feeds = {name: np.zeros([d or 1 for d in shape], np.float32) for name, shape in input_shapes(model).items()}
    table = installed("ort-cpu").placement(model, feeds)
    shown = Counter(kernel for _, kernel in {(entry.unit, entry.kernel) for entry in table if entry.kernel})
    ran = profiled(model, tmp_path)
    # Layout changes are onnxruntime's own nodes; those of the model must all be in the table.
    added = ran - shown
    assert set(added) <= {"Transpose", "ReorderInput", "ReorderOutput", "QuantizeLinear", "DequantizeLinear"}
    assert not shown - ran


def input_shapes(model: bytes) -> dict[str, list[int]]:
    values = onnx.load_from_string(model).graph.input
    return {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in values}


def test_operator_without_a_kernel_is_placed_where_its_parts_run() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float s = {0.02}, uint8 z = {120}, float t = {0.02}, uint8 u = {20}> {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) h = HardSwish (d)
            r = QuantizeLinear (h, t, u) y = DequantizeLinear (r, t, u)
        }"""
    )
    sample = {"x": np.zeros((1, 4, 8, 8), np.float32)}
    (entry,) = [
        one for one in installed("ort-cpu").placement(model.SerializeToString(), sample) if one.operator == "HardSwish"
    ]
    assert (entry.kernel, entry.precision) == ("Mul", "float")
    assert "no integer kernel for HardSwish" in entry.why
