"""Every constraint on files that quantry did not write."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.errors import ModelError, RecipeError
from quantry.targets import Violation, check_model

CONV = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
    xq = QuantizeLinear(x, xs, zero)
    xf = DequantizeLinear(xq, xs, zero)
    wf = DequantizeLinear(w, ws, zero)
    bf = DequantizeLinear(b, bs, zero)
    [conv] c = Conv(xf, wf, bf)
    r = Relu(c)
    rq = QuantizeLinear(r, rs, zero)
    y = DequantizeLinear(rq, rs, zero)
}"""
GOOD = {
    "xs": np.float32(2**-7),
    "ws": np.float32(2**-6),
    "bs": np.float32(2**-6),
    "rs": np.float32(2**-4),
    "zero": np.int8(0),
    "w": np.ones((2, 2, 1, 1), np.int8),
    "b": np.ones(2, np.int8),
}


def graph(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return proto


def conv(**changed: np.ndarray) -> onnx.ModelProto:
    return graph(CONV, **{**GOOD, **changed})


def rules(model: onnx.ModelProto) -> list[str]:
    return [violation.rule for violation in check_model(model, "npu-int8")]


def test_sound_model_has_no_violation_in_any_form(tmp_path: Path) -> None:
    proto = conv()
    onnx.save(proto, tmp_path / "m.onnx")
    forms = (proto, proto.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx"), ir.from_proto(proto))
    assert [check_model(form, "npu-int8") for form in forms] == [()] * 5


def test_checking_leaves_the_callers_model_alone() -> None:
    proto = conv(xs=np.float32(0.3))
    before = proto.SerializeToString(deterministic=True)
    check_model(proto, "npu-int8")
    assert proto.SerializeToString(deterministic=True) == before


def test_scale_that_is_no_power_of_two() -> None:
    (violation,) = check_model(conv(xs=np.float32(0.01)), "npu-int8")
    assert violation.rule == "power of two"
    assert "'x' has scale 0.01" in violation.values
    assert "2**-7" in violation.change


def test_scale_for_each_channel() -> None:
    text = CONV.replace("DequantizeLinear(w, ws, zero)", "DequantizeLinear<axis=0>(w, ws, zeros)")
    model = graph(text, **{**GOOD, "ws": np.array([0.5, 0.25], np.float32), "zeros": np.zeros(2, np.int8)})
    assert rules(model) == ["per tensor"]


def test_zero_point_off_the_centre() -> None:
    assert rules(conv(zero=np.int8(3))) == ["zero point"] * 4


def test_unsigned_activation_is_centred_at_128() -> None:
    text = CONV.replace("xs, zero", "xs, centre")
    assert rules(graph(text, **GOOD, centre=np.uint8(128))) == []
    (violation,) = check_model(graph(text, **GOOD, centre=np.uint8(0)), "npu-int8")
    assert "zero point 0, allowed 128" in violation.values


def test_types_of_weight_and_bias() -> None:
    text = CONV.replace("(b, bs, zero)", "(b, bs)").replace("(w, ws, zero)", "(w, ws, centre)")
    model = graph(
        text,
        **{**GOOD, "b": np.ones(2, np.int32), "w": np.ones((2, 2, 1, 1), np.uint8)},
        centre=np.uint8(128),
    )
    found = check_model(model, "npu-int8")
    assert [violation.rule for violation in found] == ["type", "type"]
    assert "weight 'w' is uint8, allowed int8" in found[0].values
    assert "bias 'b' is int32, allowed int8" in found[1].values


def test_sixteen_bit_activation() -> None:
    text = CONV.replace("QuantizeLinear(x, xs, zero)", "com.microsoft.QuantizeLinear(x, xs, wide)")
    text = text.replace("DequantizeLinear(xq, xs, zero)", "com.microsoft.DequantizeLinear(xq, xs, wide)")
    assert rules(graph(text, **GOOD, wide=np.int16(0))) == ["type"]


def test_operator_with_float_operand_weight_or_result() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { s = Sigmoid(x) q = QuantizeLinear(s, xs, zero) "
    text += "d = DequantizeLinear(q, xs, zero) [conv] y = Conv(d, float_weight) }"
    weights = {"xs": np.float32(0.5), "zero": np.int8(0), "float_weight": np.ones((2, 2, 1, 1), np.float32)}
    found = check_model(graph(text, **weights), "npu-int8")
    assert [violation.rule for violation in found] == ["closed by Q/DQ"] * 3
    assert [violation.values for violation in found if violation.node == "conv"] == [
        "its operand 'float_weight' is float",
        "its result 'y' is float",
    ]


def test_join_of_finished_results_may_stay_float() -> None:
    text = "g (float[1,4] x) => (float[1,8] y) { q = QuantizeLinear(x, xs, zero) d = DequantizeLinear(q, xs, zero) "
    text += "r = Relu(d) p = QuantizeLinear(r, xs, zero) e = DequantizeLinear(p, xs, zero) y = Concat<axis=1>(e, d) }"
    assert rules(graph(text, xs=np.float32(0.5), zero=np.int8(0))) == []


def test_integer_arithmetic_on_shapes_is_no_business_of_the_npu() -> None:
    text = CONV.replace("y = DequantizeLinear", "f = DequantizeLinear").replace(
        "}", "t = Shape(x) u = Mul(t, one) y = Reshape(f, u) }"
    )
    assert rules(graph(text, **GOOD, one=np.array(1))) == []


def test_factor_fused_after_a_pool_may_stay_float() -> None:
    text = "g (float[1,4,7,7] x) => (float[1,4,1,1] y) { q = QuantizeLinear(x, xs, zero) "
    text += "d = DequantizeLinear(q, xs, zero) p = GlobalAveragePool(d) m = Mul(p, f) "
    text += "r = QuantizeLinear(m, ms, zero) y = DequantizeLinear(r, ms, zero) }"
    weights = {"xs": np.float32(0.5), "zero": np.int8(0), "f": np.float32(1.0048828)}
    assert rules(graph(text, **weights, ms=np.float32(0.5))) == []
    (violation,) = check_model(graph(text, **weights, ms=np.float32(0.25)), "npu-int8")
    assert violation.rule == "align pool"


POOL = """g (float[1,4,7,7] x) => (float[1,4,1,1] y) { q = QuantizeLinear(x, xs, zero)
    d = DequantizeLinear(q, xs, zero) p = GlobalAveragePool(d) m = Mul(p, f) END }"""


@pytest.mark.parametrize(
    ("end", "broken"),
    [
        ("y = Relu(m)", set()),
        ("r = Relu(m) y = Conv(r, w)", {"Mul", "Relu", "Conv"}),
        ("r = Relu(m) t = QuantizeLinear(r, xs, zero) y = DequantizeLinear(t, xs, zero)", {"Mul", "Relu"}),
        ("r = QuantizeLinear(m, xs, zero) e = DequantizeLinear(r, xs, zero) y = Relu(e)", {"Relu"}),
    ],
    ids=["end", "layer after it", "quantized after it", "quantized pool"],
)
def test_only_an_average_pool_at_the_end_may_stay_float(end: str, broken: set[str]) -> None:
    weights = {"xs": np.float32(0.5), "zero": np.int8(0), "f": np.float32(0.7)}
    model = graph(POOL.replace("END", end), **weights, w=np.ones((4, 4, 1, 1), np.float32))
    found = [one for one in check_model(model, "npu-int8") if one.rule == "closed by Q/DQ"]
    assert {one.node.partition("_")[0] for one in found} == broken


@pytest.mark.parametrize(
    ("changed", "rule", "values"),
    [
        ({"rs": np.float32(2.0**5)}, "shift cut", "wpos 6 + ipos 7 - opos -5 = 18, allowed 0 to 16"),
        ({"rs": np.float32(2.0**-14)}, "shift cut", "wpos 6 + ipos 7 - opos 14 = -1, allowed 0 to 16"),
        ({"bs": np.float32(2.0**3)}, "shift bias", "wpos 6 + ipos 7 - bpos -3 = 16, allowed -7 to 15"),
    ],
)
def test_shifts_of_a_convolution_through_its_fused_activation(
    changed: dict[str, np.ndarray], rule: str, values: str
) -> None:
    (violation,) = check_model(conv(**changed), "npu-int8")
    assert violation == Violation("conv", rule, values, violation.change)
    assert violation.change.startswith("move '")


def test_constants_from_nodes_and_a_pair_for_each_reader_are_read() -> None:
    text = """g (float[1,4] x) => (float[1,4] y) {
        s = Constant<value_float=0.5>()
        z = Constant<value = int8 {0}>()
        q = QuantizeLinear(x, s, z)
        a = DequantizeLinear(q, s, z)
        b = DequantizeLinear(q, s, z)
        c = Add(a, b)
        cq = QuantizeLinear(c, s, z)
        y = DequantizeLinear(cq, s, z)
    }"""
    assert rules(graph(text)) == []


def test_model_of_onnxruntime_with_float_scales_is_reported(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)}]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    weights = np.random.default_rng(1).standard_normal((2, 2, 1, 1)).astype(np.float32)
    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Conv(x, w, b) }"
    onnx.save(graph(text, w=weights, b=np.ones(2, np.float32)), tmp_path / "float.onnx")
    quantize_static(tmp_path / "float.onnx", tmp_path / "int8.onnx", Reader())
    found = set(rules(onnx.load(tmp_path / "int8.onnx")))
    assert {"power of two", "type"} <= found
    assert "closed by Q/DQ" not in found


def test_float_model_is_an_error() -> None:
    with pytest.raises(
        ModelError,
        match=r"must be quantized, with Q/DQ pairs, .* or integer operators, got none of them among 1 nodes",
    ):
        check_model(graph("g (float[2] x) => (float[2] y) { y = Relu(x) }"), "npu-int8")


def test_command_exits_with_0_for_a_sound_model_and_3_with_a_table_for_another(tmp_path: Path) -> None:
    onnx.save(conv(), tmp_path / "good.onnx")
    onnx.save(conv(rs=np.float32(32)), tmp_path / "bad.onnx")
    good = CliRunner().invoke(app, ["check", str(tmp_path / "good.onnx"), "--target", "npu-int8"])
    bad = CliRunner().invoke(app, ["check", str(tmp_path / "bad.onnx")])
    assert good.exit_code == 0
    assert "satisfies all constraints" in good.output
    assert bad.exit_code == 3
    assert "shift cut" in bad.output


def test_command_refuses_an_unknown_target(tmp_path: Path) -> None:
    onnx.save(conv(), tmp_path / "good.onnx")
    outcome = CliRunner().invoke(app, ["check", str(tmp_path / "good.onnx"), "--target", "npu-int16"])
    assert isinstance(outcome.exception, RecipeError)
    assert "did you mean 'npu-int8'" in str(outcome.exception)


def test_command_counts_by_rule_and_says_what_to_do(tmp_path: Path) -> None:
    onnx.save(conv(rs=np.float32(0.3)), tmp_path / "bad.onnx")
    bad = CliRunner().invoke(app, ["check", str(tmp_path / "bad.onnx")])
    assert "power of two 1" in bad.output
    assert "--recipe recommended-npu" in bad.output


def test_command_writes_json_and_still_exits_with_3(tmp_path: Path) -> None:
    onnx.save(conv(rs=np.float32(32)), tmp_path / "bad.onnx")
    bad = CliRunner().invoke(app, ["check", str(tmp_path / "bad.onnx"), "--json"])
    assert bad.exit_code == 3
    assert {"shift cut"} <= {violation["rule"] for violation in json.loads(bad.output)["result"]["violations"]}


@pytest.mark.parametrize("preset", ["UINT8_DYNAMIC_QUANT", "BFP16", "MATMUL_NBITS"])
def test_formats_that_no_npu_has_are_violations_and_no_error(preset: str) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,32] y) <float[64,32] w> '
        "{ y = MatMul(x, w) }"
    )
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 32), np.float32), "w"))
    data = [np.ones((1, 64), np.float32)]
    violations = check_model(quantry.quantize(model, data, preset, store=None).to_bytes(), "npu-int8")
    assert {violation.rule for violation in violations} == {"format"}
    assert all("recommended-npu" in violation.change for violation in violations)
