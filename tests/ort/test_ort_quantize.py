"""onnxruntime's quantization functions: signatures, options, and models of every kind that it accepts."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import pytest
from facade_models import Reader, cnn, operators, run, samples
from onnx import helper, numpy_helper

import quantry.ort as ours
from quantry.errors import DataError, RecipeError, SelectionError


def quantized(folder: Path, model: Any = None, **settings: Any) -> onnx.ModelProto:
    path = folder / "q.onnx"
    ours.quantize_static(cnn() if model is None else model, path, Reader(), **settings)
    return onnx.load(path)


def stored(model: onnx.ModelProto, name: str) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


@pytest.mark.parametrize("name", ["quantize_static", "quantize_dynamic", "quantize"])
def test_signature_is_that_of_onnxruntime(name: str) -> None:
    mine, other = (inspect.signature(getattr(module, name)).parameters for module in (ours, theirs))
    assert list(mine) == list(other)
    for key, parameter in other.items():
        default = mine[key].default
        assert getattr(default, "name", default) == getattr(parameter.default, "name", parameter.default)


def test_ranges_of_activations_are_those_of_onnxruntime(tmp_path: Path) -> None:
    model = cnn()
    mine = quantized(tmp_path, model)
    theirs.quantize_static(model, str(tmp_path / "theirs.onnx"), Reader())
    other = onnx.load(tmp_path / "theirs.onnx")
    for tensor in ("image_scale", "image_zero_point", "w2_scale"):
        assert np.allclose(stored(mine, tensor), stored(other, tensor))


def test_scales_are_in_typed_fields(tmp_path: Path) -> None:
    tensor = next(entry for entry in quantized(tmp_path).graph.initializer if entry.name == "image_scale")
    assert len(tensor.float_data) == 1


@pytest.mark.parametrize("kind", [ours, theirs])
def test_configuration_objects_of_both_packages_are_accepted(tmp_path: Path, kind: Any) -> None:
    static = kind.StaticQuantConfig(Reader(), per_channel=True, nodes_to_exclude=["Gemm_12"])
    ours.quantize(cnn(), tmp_path / "s.onnx", static)
    assert stored(onnx.load(tmp_path / "s.onnx"), "w1_scale").shape == (4,)
    ours.quantize(cnn(), tmp_path / "d.onnx", kind.DynamicQuantConfig())
    assert "DynamicQuantizeLinear" in {kind for _, kind in operators(onnx.load(tmp_path / "d.onnx"))}
    with pytest.raises(RecipeError, match="quant_config must be a StaticQuantConfig or a DynamicQuantConfig, got dict"):
        ours.quantize(cnn(), tmp_path / "x.onnx", {})


def test_given_scale_range_and_channels(tmp_path: Path) -> None:
    overrides = {
        "image": [{"scale": 0.5, "zero_point": 7}],
        "r1": [{"rmin": -1.0, "rmax": 4.1}],
        "w1": [{"axis": 0, "rmin": -c, "rmax": c} for c in (1.0, 2.0, 3.0, 4.0)],
    }
    model = quantized(tmp_path, extra_options={"TensorQuantOverrides": overrides})
    assert (stored(model, "image_scale"), stored(model, "image_zero_point")) == (0.5, 7)
    assert np.isclose(stored(model, "r1_scale"), 5.1 / 255)
    assert np.allclose(stored(model, "w1_scale"), np.array([1.0, 2.0, 3.0, 4.0]) / 127)
    run(model, samples(1)[0])


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ([{"scale": 0.5}], "'scale' and 'zero_point' together"),
        ([{"scale": 0.5, "zero_point": 0, "rmax": 1.0}], "rmax together with a scale"),
        ([{"rmin": 0.0}, {"rmin": 1.0}], "an 'axis' in its first dict"),
        ([{"scal": 1}], "did you mean 'scale'"),
    ],
)
def test_contradicting_overrides_raise(tmp_path: Path, entry: Any, text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        quantized(tmp_path, extra_options={"TensorQuantOverrides": {"image": entry}})
    with pytest.raises(SelectionError, match="not present in the model"):
        quantized(tmp_path, extra_options={"TensorQuantOverrides": {"absent": [{"rmin": 0.0, "rmax": 1.0}]}})


def test_narrow_ranges_are_widened(tmp_path: Path) -> None:
    model = cnn()
    wide = quantized(tmp_path, model, extra_options={"MinimumRealRange": 1000.0})
    assert np.isclose(stored(wide, "image_scale"), 1000.0 / 255, rtol=1e-5)
    assert np.allclose(
        stored(quantized(tmp_path, model, extra_options={"MinimumRealRange": None}), "image_scale"),
        stored(quantized(tmp_path, model), "image_scale"),
    )


def test_zero_points_at_an_end(tmp_path: Path) -> None:
    unsigned = {"activation_type": theirs.QuantType.QUInt8}
    model = quantized(tmp_path, **unsigned, extra_options={"ActivationRestrictedAsymmetric": True})
    assert int(stored(model, "r1_zero_point")) == 0
    assert int(stored(model, "image_zero_point")) in (0, 128)
    signed = quantized(tmp_path, extra_options={"ActivationSymmetric": True, "UseUnsignedReLU": True})
    assert int(stored(signed, "r1_zero_point")) == -128
    assert int(stored(signed, "scores_zero_point")) == 0


def test_blocks_of_weights(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "blocks",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    ours.quantize_static(model, tmp_path / "q.onnx", _Samples([2, 64]), extra_options={"BlockSize": 32})
    result = onnx.load(tmp_path / "q.onnx")
    assert stored(result, "w_scale").shape == (2, 8)


class _Samples:
    def __init__(self, shape: list[int], dtype: str = "float32") -> None:
        self._rest = iter([{"x": np.random.default_rng(1).normal(size=shape).astype(dtype)} for _ in range(2)])

    def get_next(self) -> Any:
        return next(self._rest, None)


def test_ranges_are_kept_in_a_file(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "ranges.json"
    first = quantized(tmp_path, calibration_cache_path=cache)
    assert theirs.load_tensors_data(cache).data.keys() >= {"image", "r1"}
    ours.quantize_static(cnn(), tmp_path / "again.onnx", None, calibration_cache_path=cache)
    again = onnx.load(tmp_path / "again.onnx")
    assert np.isclose(stored(again, "image_scale"), stored(first, "image_scale"))
    with pytest.raises(RecipeError, match="ranges of the method Percentile, got those of MinMax"):
        quantized(tmp_path, calibration_cache_path=cache, calibrate_method=theirs.CalibrationMethod.Percentile)
    with pytest.raises(DataError, match="calibration_data_reader must be given"):
        ours.quantize_static(cnn(), tmp_path / "q.onnx")


def halves() -> onnx.ModelProto:
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float16)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "halves",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [2, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_half_precision_model_keeps_its_inputs_and_outputs(tmp_path: Path) -> None:
    ours.quantize_static(halves(), tmp_path / "q.onnx", _Samples([2, 8], "float16"))
    sample = _Samples([2, 8], "float16").get_next()
    found, wanted = run(str(tmp_path / "q.onnx"), sample)[0], run(halves(), sample)[0]
    assert found.dtype == np.float16
    assert np.abs(found - wanted).max() < 0.1


def test_partly_quantized_model_is_quantized_as_a_whole(tmp_path: Path) -> None:
    part = quantized(tmp_path, op_types_to_quantize=["Conv"])
    whole = quantized(tmp_path, part)
    inputs = {node.op_type: node.input[0] for node in whole.graph.node}
    assert inputs["Gemm"].endswith("DequantizeLinear_Output")
    reference = run(cnn(), samples(1)[0])[0]
    assert np.abs(run(whole, samples(1)[0])[0] - reference).max() < 0.2 * np.abs(reference).max()


def test_numbers_of_types_unknown_exclusions_and_operators_without_a_rule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = quantized(tmp_path, activation_type=onnx.TensorProto.UINT8, nodes_to_exclude=["absent"])
    assert stored(model, "image_zero_point").dtype == np.uint8
    assert "'absent', which is no node of the model" in caplog.text
    graph = helper.make_graph(
        [helper.make_node("Einsum", ["x", "x"], ["y"], "sums", equation="ij,ij->ij")],
        "sums",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 8])],
    )
    sums = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ours.quantize_static(sums, tmp_path / "q.onnx", _Samples([2, 8]), op_types_to_quantize=["Einsum"])
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(tmp_path / "q.onnx").graph.node) == 2
    with pytest.raises(RecipeError, match="must hold operator types of ONNX, got 'Einsumm'"):
        ours.quantize_static(sums, tmp_path / "q.onnx", _Samples([2, 8]), op_types_to_quantize=["Einsumm"])


def test_options_of_the_command_line_are_accepted(tmp_path: Path) -> None:
    written = quantized(
        tmp_path,
        extra_options={"QDQDisableWeightAdjustForInt32Bias": False, "CalibTensorRangeSymmetric": True},
    )
    # A range that is the same on both sides has its zero point in the middle of uint8.
    arrays = [numpy_helper.to_array(tensor) for tensor in written.graph.initializer]
    assert {int(array) for array in arrays if array.dtype == np.uint8 and array.size == 1} <= {127, 128}
