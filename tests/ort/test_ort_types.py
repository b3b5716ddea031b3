"""Conversions between types, float16, stored weights, functions that saturation replaces, and fused operators."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from facade_models import run
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType

import quantry.ort as ours
from quantry.errors import RecipeError, SelectionError

RNG = np.random.default_rng(3)


class Feed:
    """Random samples of one input."""

    def __init__(self, name: str, shape: list[int], dtype: str = "float32", count: int = 2) -> None:
        rng = np.random.default_rng(0)
        self.samples = [{name: rng.normal(size=shape).astype(dtype)} for _ in range(count)]
        self._left = list(self.samples)

    def get_next(self) -> Any:
        """Return the next sample, or None at the end."""
        return self._left.pop() if self._left else None


def model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray[Any, Any]],
    *,
    shape: list[int],
    outputs: tuple[str, ...] = ("y",),
    dtype: int = TensorProto.FLOAT,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "types",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def counted(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def fan(dtype: int = TensorProto.FLOAT, outputs: tuple[str, ...] = ("a", "b")) -> onnx.ModelProto:
    """x -> Sigmoid -> s, which two Tanh read."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], name="first"),
        helper.make_node("Tanh", ["s"], ["a"], name="left"),
        helper.make_node("Tanh", ["s"], ["b"], name="right"),
    ]
    return model(nodes, {}, shape=[1, 2, 3], outputs=outputs, dtype=dtype, opset=18)


def converted(readers: set[str] | None = None, **more: Any) -> dict[str, Any]:
    names = {} if readers is None else {"recv_nodes": readers}
    entry = {"quant_type": QuantType.QUInt8, "convert": {"quant_type": QuantType.QUInt16, **names, **more}}
    return {"TensorQuantOverrides": {"s": [entry]}}


def test_conversion_for_one_reader_has_a_dequantizer_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    ours.quantize_static(
        fan(), path, Feed("x", [1, 2, 3]), activation_type=QuantType.QUInt8, extra_options=converted({"right"})
    )
    found = arrays(path)
    assert found["s_zero_point"].dtype == np.uint8
    assert found["s_zero_point_convert"].dtype == np.uint16
    assert counted(path)["QuantizeLinear"] == 5
    assert counted(path)["DequantizeLinear"] == 6
    sample = Feed("x", [1, 2, 3]).get_next()
    for mine, exact in zip(run(onnx.load(path), sample), run(fan(), sample), strict=True):
        np.testing.assert_allclose(mine, exact, atol=0.02)


def test_conversion_for_all_readers_applies_to_the_output_too(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    options = converted(scale=np.array(0.001, np.float32), zero_point=np.array(0, np.uint16))
    ours.quantize_static(fan(outputs=("a", "b", "s")), path, Feed("x", [1, 2, 3]), extra_options=options)
    last = next(node for node in onnx.load(path).graph.node if "s" in node.output)
    assert last.op_type == "DequantizeLinear"
    assert last.input[1] == "s_scale_convert"
    np.testing.assert_allclose(arrays(path)["s_scale_convert"], 0.001, rtol=1e-6)


@pytest.mark.parametrize(
    ("entry", "error", "text"),
    [
        ({"convert": {}}, RecipeError, "a dict with 'quant_type'"),
        ({"convert": {"quant_type": QuantType.QInt16, "axis": 0}}, RecipeError, "known keys, got 'axis'"),
        ({"convert": {"quant_type": QuantType.QInt16, "recv_nodes": {"rigth"}}}, SelectionError, "'right'"),
    ],
)
def test_conversion_that_cannot_be_read_raises(
    tmp_path: Path, entry: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ours.quantize_static(
            fan(), tmp_path / "q.onnx", Feed("x", [1, 2, 3]), extra_options={"TensorQuantOverrides": {"s": [entry]}}
        )


def test_half_precision_model_has_half_precision_scales(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    weight = RNG.normal(size=(8, 4)).astype(np.float16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    half = model(nodes, {"w": weight}, shape=[2, 8], dtype=TensorProto.FLOAT16)
    feed = Feed("x", [2, 8], "float16")
    ours.quantize_static(half, path, feed)
    assert arrays(path)["x_scale"].dtype == np.float16
    assert counted(path)["Cast"] == 0
    mine = run(onnx.load(path), feed.samples[0])[0]
    assert mine.dtype == np.float16
    np.testing.assert_allclose(mine, feed.samples[0]["x"] @ weight, atol=0.1)


def stored_model() -> tuple[onnx.ModelProto, np.ndarray[Any, Any]]:
    """Return a model with a weight of integers with one scale per channel, and the integers."""
    integers = RNG.integers(-90, 90, (6, 3, 3, 3)).astype(np.int8)
    constants = {
        "w_q": integers,
        "step": RNG.uniform(0.001, 0.02, 6).astype(np.float32),
        "offset": np.zeros(6, np.int8),
        "s": np.array(0.02, np.float32),
        "z": np.array(0, np.uint8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w_q", "step", "offset"], ["w"], axis=0, name="restore"),
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["c_q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["c_q", "s", "z"], ["d"], name="dequantize"),
        helper.make_node("Tanh", ["d"], ["y"], name="tanh"),
    ]
    return model(nodes, constants, shape=[1, 3, 8, 8]), integers


def test_stored_weights_and_ranges_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    partly, integers = stored_model()
    ours.quantize_static(partly, path, Feed("x", [1, 3, 8, 8]), activation_type=QuantType.QUInt8)
    conv = next(node for node in onnx.load(path).graph.node if node.op_type == "Conv")
    restore = next(node for node in onnx.load(path).graph.node if node.output[0] == conv.input[1])
    assert restore.input[1:] == ["step", "offset"]
    np.testing.assert_array_equal(arrays(path)[restore.input[0]], integers)
    following = next(node for node in onnx.load(path).graph.node if conv.output[0] in node.input)
    np.testing.assert_allclose(arrays(path)[following.input[1]], 0.02, rtol=1e-6)
    assert arrays(path)[following.input[2]] == 0  # the pair stood for a Relu, which must not get lost
    sample = Feed("x", [1, 3, 8, 8]).get_next()
    np.testing.assert_allclose(run(onnx.load(path), sample)[0], run(partly, sample)[0], atol=0.05)


def bounded(clip: float = 0.5) -> onnx.ModelProto:
    constants = {
        "w1": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "w2": np.abs(RNG.normal(size=(4, 4, 3, 3))).astype(np.float32),
        "low": np.array(0, np.float32),
        "high": np.array(clip, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], name="one"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["d"], name="two"),
        helper.make_node("Clip", ["d", "low", "high"], ["y"], name="clip"),
    ]
    return model(nodes, constants, shape=[1, 3, 8, 8])


def test_functions_that_saturation_replaces_are_removed(tmp_path: Path) -> None:
    path, float_model = tmp_path / "q.onnx", bounded()
    ours.quantize_static(float_model, path, Feed("x", [1, 3, 8, 8]))
    assert not {"Relu", "Clip"} & set(counted(path))
    kept = tmp_path / "kept.onnx"
    options = {"QDQKeepRemovableActivations": True}
    ours.quantize_static(float_model, kept, Feed("x", [1, 3, 8, 8]), extra_options=options)
    assert {"Relu", "Clip"} <= set(counted(kept))
    sample = Feed("x", [1, 3, 8, 8]).get_next()
    np.testing.assert_array_equal(run(onnx.load(path), sample)[0], run(onnx.load(kept), sample)[0])


def test_function_stays_where_the_integers_go_further(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    ours.quantize_static(bounded(), path, Feed("x", [1, 3, 8, 8]), extra_options={"ActivationSymmetric": True})
    assert counted(path)["Relu"] == 1


def test_functions_after_float_tensors_stay_float(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    lonely = model([helper.make_node("Relu", ["x"], ["y"], name="relu")], {}, shape=[2, 4])
    ours.quantize_static(lonely, path, Feed("x", [2, 4]))
    assert counted(path) == {"Relu": 1}
    ours.quantize_static(lonely, path, Feed("x", [2, 4]), extra_options={"ForceQuantizeNoInputCheck": True})
    assert counted(path)["QuantizeLinear"] > 0


def test_choice_between_tensors_is_an_integer_operator(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    constants = {"condition": RNG.random((2, 4)) > 0.5, "other": RNG.normal(size=(2, 4)).astype(np.float32)}
    choice = model(
        [helper.make_node("Where", ["condition", "x", "other"], ["y"], name="where")], constants, shape=[2, 4]
    )
    feed = Feed("x", [2, 4])
    options = {"ForceQuantizeNoInputCheck": True}
    ours.quantize_static(choice, path, feed, quant_format=QuantFormat.QOperator, extra_options=options)
    assert counted(path)["QLinearWhere"] == 1
    np.testing.assert_allclose(run(onnx.load(path), feed.samples[0])[0], run(choice, feed.samples[0])[0], atol=0.05)


def test_parameters_of_normalizations_are_integers(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    constants = {"gamma": np.array([1.0, 0.5, 2.0], np.float32), "beta": np.array([0.0, 0.5, 1.0], np.float32)}
    node = helper.make_node("InstanceNormalization", ["x", "gamma", "beta"], ["y"], name="norm")
    norm, feed = model([node], constants, shape=[1, 3, 8, 8]), Feed("x", [1, 3, 8, 8])
    ours.quantize_static(norm, path, feed)
    assert counted(path)["DequantizeLinear"] == 4
    np.testing.assert_allclose(run(onnx.load(path), feed.samples[0])[0], run(norm, feed.samples[0])[0], atol=0.1)


def test_padding_with_a_number_is_an_integer_operator(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    constants = {
        "w": RNG.normal(size=(2, 3, 3, 3)).astype(np.float32),
        "pads": np.array([0, 0, 1, 2, 0, 0, 1, 2], np.int64),
        "fill": np.array(1.5, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Pad", ["c", "pads", "fill"], ["y"], name="pad"),
    ]
    padded, feed = model(nodes, constants, shape=[1, 3, 8, 8]), Feed("x", [1, 3, 8, 8])
    ours.quantize_static(padded, path, feed, quant_format=QuantFormat.QOperator)
    assert [node.op_type for node in onnx.load(path).graph.node][-2:] == ["Pad", "DequantizeLinear"]
    assert counted(path)["QuantizeLinear"] == 1
    found, wanted = run(onnx.load(path), feed.samples[0])[0], run(padded, feed.samples[0])[0]
    np.testing.assert_allclose(found, wanted, atol=0.2)
    assert abs(found[0, 0, 0, 0] - 1.5) < 0.1


def test_fused_attention_is_an_integer_operator(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    constants = {
        "qkv": RNG.normal(0, 0.1, (10, 30)).astype(np.float32),
        "bias": RNG.normal(size=30).astype(np.float32),
        "w": RNG.normal(0, 0.1, (10, 10)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Attention", ["x", "qkv", "bias"], ["a"], name="a", domain="com.microsoft", num_heads=5),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="product"),
    ]
    attention, feed = model(nodes, constants, shape=[1, 5, 10]), Feed("x", [1, 5, 10])
    ours.quantize_dynamic(attention, path)
    assert counted(path)["QAttention"] == counted(path)["MatMulInteger"] == 1
    np.testing.assert_allclose(run(onnx.load(path), feed.samples[0])[0], run(attention, feed.samples[0])[0], atol=0.02)


def test_fused_embeddings_are_integers(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    sizes = {"words": (32, 8), "positions": (16, 8), "segments": (2, 8), "gamma": (8,), "beta": (8,)}
    tables = {name: RNG.random(size).astype(np.float32) for name, size in sizes.items()}
    node = helper.make_node(
        "EmbedLayerNormalization", ["ids", "kinds", *tables], ["y", "mask"], name="embed", domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node],
        "embeddings",
        [helper.make_tensor_value_info(name, TensorProto.INT32, [1, 4]) for name in ("ids", "kinds")],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8]),
            helper.make_tensor_value_info("mask", TensorProto.INT32, [1]),
        ],
        [numpy_helper.from_array(array, name) for name, array in tables.items()],
    )
    imports = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    embeddings = helper.make_model(graph, opset_imports=imports, ir_version=8)
    ours.quantize_dynamic(embeddings, path)
    assert counted(path) == {"QEmbedLayerNormalization": 1}
    sample = {"ids": np.array([[3, 9, 30, 0]], np.int32), "kinds": np.array([[0, 1, 1, 0]], np.int32)}
    np.testing.assert_allclose(run(onnx.load(path), sample)[0], run(embeddings, sample)[0], atol=0.05)


def test_integer_convolution_with_a_scale_per_channel_has_signed_weights(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    ours.quantize_static(
        bounded(),
        path,
        Feed("x", [1, 3, 8, 8]),
        quant_format=QuantFormat.QOperator,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
    )
    assert counted(path)["QLinearConv"] == 2


def test_seven_bits_keep_both_ends_of_a_weight(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    weight = RNG.integers(-1, 2, (8, 4)).astype(np.float32)
    signs = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], {"w": weight}, shape=[2, 8])
    ours.quantize_dynamic(signs, path, reduce_range=True, weight_type=QuantType.QUInt8)
    found = arrays(path)
    restored = (found["w_quantized"].astype(np.float32) - float(found["w_zero_point"])) * found["w_scale"]
    np.testing.assert_allclose(restored, weight, atol=1e-6)
    assert found["w_quantized"].max() <= 127


def test_stored_ranges_of_a_symmetric_model_do_not_grow(tmp_path: Path) -> None:
    path, cache = tmp_path / "q.onnx", tmp_path / "ranges.json"
    scales = []
    for _ in range(3):
        ours.quantize_static(
            bounded(),
            path,
            Feed("x", [1, 3, 8, 8]),
            extra_options={"ActivationSymmetric": True},
            calibration_cache_path=cache,
        )
        scales.append(float(arrays(path)["x_scale"]))
    np.testing.assert_allclose(scales, scales[0], rtol=1e-6)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_eight_bit_floats_are_pairs_in_both_forms(tmp_path: Path, form: QuantFormat) -> None:
    path, feed = tmp_path / "q.onnx", Feed("x", [2, 8])
    weight = RNG.normal(size=(8, 4)).astype(np.float32)
    product = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], {"w": weight}, shape=[2, 8])
    ours.quantize_static(
        product,
        path,
        feed,
        quant_format=form,
        activation_type=QuantType.QFLOAT8E4M3FN,
        weight_type=QuantType.QFLOAT8E4M3FN,
        calibrate_method=CalibrationMethod.Distribution,
        extra_options={"scenario": "p3"},
    )
    types = {tensor.data_type for tensor in onnx.load(path).graph.initializer if tensor.name.endswith("_zero_point")}
    assert types == {TensorProto.FLOAT8E4M3FN}


def test_symmetric_convolutions_before_a_function_run_on_integers(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    ours.quantize_static(bounded(), path, Feed("x", [1, 3, 8, 8]), extra_options={"ActivationSymmetric": True})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert counted(tmp_path / "optimized.onnx")["QLinearConv"] == 2
