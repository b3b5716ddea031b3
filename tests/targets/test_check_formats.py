"""The check gives the same result for a model in every format."""

import functools
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import quantry
from quantry import demo
from quantry.memo import MemoryStore
from quantry.recipe import PRESETS, EmitOptions, FixNeuron, Format, Qdq, QOperator, VitisDialect, VitisQdq
from quantry.targets import check_model

XINT8 = PRESETS["XINT8"].recipe
STORE = MemoryStore()  # one float pass serves all
FORMATS = (FixNeuron(), QOperator(), VitisQdq(VitisDialect.VAI))


@functools.cache
def broken_rules(recipe: quantry.Recipe, format_: Format) -> frozenset[str]:
    asked = replace(recipe, emit=EmitOptions(format_))
    written = quantry.quantize(demo.model_path(), demo.calibration_inputs(1), asked, store=STORE).to_bytes()
    return frozenset(violation.rule for violation in check_model(written, "npu-int8"))


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: type(format_).__name__)
def test_detector_that_keeps_every_constraint_keeps_them_in_every_format(format_: Format) -> None:
    assert broken_rules(XINT8, format_) == frozenset()


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: type(format_).__name__)
def test_rules_that_are_broken_are_the_same_in_every_format(format_: Format) -> None:
    recipe = replace(XINT8, scale=replace(XINT8.scale, npu=None))
    expected = broken_rules(recipe, Qdq())
    assert "align concat" in expected
    assert broken_rules(recipe, format_) == expected


def test_fix_neuron_without_inputs_for_its_grid_is_read_from_its_attributes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]> g (float[1,2] x) => (float[1,2] y) {
        a = ai.onnx.contrib.FixNeuron <bit_width = "8", pos = "7"> (x)
        c = ai.onnx.contrib.FixNeuron <bit_width = "16", pos = "6"> (w)
        b = MatMul (a, c)
        y = ai.onnx.contrib.FixNeuron <bit_width = "8", pos = "4"> (b)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), "w"))
    assert [violation.rule for violation in check_model(model, "npu-int8")] == ["type"]


def test_wide_bias_of_an_integer_operator_is_named() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,2,2] x) => (float[1,1,2,2] y) {
        q = QuantizeLinear (x, s, z)
        [conv] r = QLinearConv (q, s, z, w, s, z, o, z, b)
        y = DequantizeLinear (r, o, z)
    }"""
    constants = {
        "s": np.float32(2**-7),
        "z": np.int8(0),
        "w": np.ones((1, 1, 1, 1), np.int8),
        "o": np.float32(2**-6),
        "b": np.array([1001], np.int32),
    }
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    (violation,) = check_model(model, "npu-int8")
    assert violation.rule == "type"
    assert "is int32, allowed int8" in violation.values
