"""Bounds of accumulators and counts of ties, against every sum of small layers."""

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from target_models import network, samples
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.targets import CheckedModel, check_model, prove_accumulators
from quantry.targets.rules.accumulator import _tie_share

TEXT = """<ir_version: 8, opset_import: ["" : 21]> g (float[1,3] x) => (float[1,2] y) {
    xq = QuantizeLinear (x, xs, xz)
    xf = DequantizeLinear (xq, xs, xz)
    wf = DequantizeLinear <axis = 1> (w, ws, wz)
    bf = DequantizeLinear (b, bs, bz)
    [gemm] c = Gemm (xf, wf, bf)
    cq = QuantizeLinear (c, ys, yz)
    y = DequantizeLinear (cq, ys, yz)
}"""


def gemm(weight: np.ndarray, zero_point: int, x_type: type = np.uint8) -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    constants = {
        "xs": np.float32(0.5),
        "xz": np.asarray(zero_point, x_type),
        "w": weight,
        "ws": np.array([0.25, 0.125], np.float32),
        "wz": np.zeros(2, weight.dtype),
        "b": np.array([100, -50], np.int32),
        "bs": np.array([0.125, 0.0625], np.float32),
        "bz": np.zeros(2, np.int32),
        "ys": np.float32(1.0),
        "yz": np.uint8(7),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    # The bias is per channel as well, along its only axis.
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("axis", 0))
    return model


def test_bounds_are_the_extremes_of_all_inputs() -> None:
    weight = np.array([[3, -7], [-2, 5], [1, 1]], np.int8)
    (proof,) = prove_accumulators(CheckedModel(gemm(weight, 100)))
    corners = np.array(list(itertools.product([0 - 100, 255 - 100], repeat=3)))
    sums = corners @ weight.astype(np.int64) + np.array([100, -50])
    assert (proof.low, proof.high) == (sums.min(), sums.max())
    assert proof.fits
    assert -(2 ** (proof.bits - 1)) <= proof.low
    assert proof.high < 2 ** (proof.bits - 1)
    assert proof.low < -(2 ** (proof.bits - 2)) or proof.high >= 2 ** (proof.bits - 2)


@pytest.mark.parametrize("factor", [0.125, 0.5, 0.375, 1 / 3, 0.0123, 1.0, 3.0])
def test_ties_are_counted_exactly(factor: float) -> None:
    factor = float(np.float32(factor))
    values = np.arange(-517, 1043)
    # float64 holds these products exactly: 24 bits of the factor and 11 of the value.
    expected = np.mean((values * factor) % 1 == 0.5)
    assert _tie_share(-517, 1042, factor) == pytest.approx(expected, abs=1e-15)


def test_sum_that_can_overflow_is_a_violation() -> None:
    rows = 70_000
    text = TEXT.replace("float[1,3]", f"float[1,{rows}]")
    model = gemm(np.full((rows, 2), 127, np.int8), 0)
    model.graph.CopyFrom(parser.parse_model(text).graph)
    model.graph.initializer.extend(gemm(np.full((rows, 2), 127, np.int8), 0).graph.initializer)
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("axis", 0))
    (proof,) = prove_accumulators(CheckedModel(model))
    assert proof.high == 127 * 255 * rows + 100
    assert not proof.fits
    (violation,) = check_model(model, "ort-cpu")
    assert violation.rule == "int32 accumulator"
    assert "need 33 bits" in violation.values


@pytest.mark.parametrize("preset", ["XINT8", "CPU_INT8", "A16W8"])
def test_every_layer_of_a_network_is_proven(preset: str, tmp_path: Path) -> None:
    result = quantry.quantize(network(), samples(), preset, store=None)
    proofs = prove_accumulators(CheckedModel(result.to_bytes()))
    assert [proof.operator for proof in proofs] == ["Conv", "Conv", "Gemm"]
    assert all(proof.fits for proof in proofs)
    # Power-of-two scales shift, so sums end in exactly one half often; other scales hardly ever.
    assert any(proof.ties for proof in proofs) == (preset == "XINT8")
    result.save(tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "m.onnx"), "--target", "ort-cpu"])
    assert "3 of 3 layers proven free of int32 overflow" in done.output
    plain = json.loads(CliRunner().invoke(app, ["check", str(tmp_path / "m.onnx"), "--json"]).stdout)
    assert len(plain["result"]["accumulators"]) == 3
