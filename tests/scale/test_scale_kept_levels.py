"""Products with a constant number keep the levels of their input."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import quantry
from onnx_oracle import from_text, run
from quantry.recipe import DataType, MinMSE, PlanOptions, PowerOfTwoScale, Recipe, ScaleOptions, TensorSpec

RANDOM = np.random.default_rng(4)
SAMPLES = [{"x": RANDOM.standard_normal((2, 8)).astype(np.float32)} for _ in range(6)]
WEIGHTS = {name: RANDOM.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v")}
ASYMMETRIC = PlanOptions(activation=TensorSpec(DataType.UINT8, symmetric=False))
KEPT = ScaleOptions(activation=MinMSE(), keep_levels=True)


def model(product: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) <float c = {{0.3}}>
        {{ a = MatMul (x, w) s = Sigmoid (a) m = {product} r = Reshape (m, shape) y = MatMul (r, v) }}"""
    return from_text(text, shape=np.array([2, 8]), **WEIGHTS)


def scales(written: bytes) -> dict[str, np.ndarray]:
    proto = onnx.load_model_from_string(written)
    return {
        entry.name.removesuffix("_scale"): numpy_helper.to_array(entry)
        for entry in proto.graph.initializer
        if entry.name.endswith("_scale")
    }


def quantized(product: str, options: ScaleOptions = KEPT, plan: PlanOptions = ASYMMETRIC) -> dict[str, np.ndarray]:
    recipe = Recipe(plan=plan, scale=options)
    return scales(quantry.quantize(model(product), SAMPLES, recipe, store=None).to_bytes())


@pytest.mark.parametrize(("product", "factor"), [("Mul (s, c)", 0.3), ("Mul (c, s)", 0.3), ("Div (s, c)", 1 / 0.3)])
def test_scale_of_a_product_is_that_of_its_input_times_the_number(product: str, factor: float) -> None:
    found = quantized(product)
    np.testing.assert_allclose(found["m"], found["s"] * factor, rtol=1e-6)
    np.testing.assert_allclose(quantized(product, replace(KEPT, keep_levels=False))["m"], found["m"], rtol=0.05)


@pytest.mark.parametrize("product", ["Add (s, c)", "Div (c, s)", "Mul (s, s)"])
def test_other_operators_have_a_scale_of_their_own(product: str) -> None:
    assert quantized(product) == quantized(product, replace(KEPT, keep_levels=False))


def test_negative_numbers_and_powers_of_two_change_nothing() -> None:
    powers = PlanOptions(activation=TensorSpec(DataType.INT8, scale=PowerOfTwoScale()))
    without = replace(KEPT, keep_levels=False)
    assert quantized("Mul (s, c)", KEPT, powers) == quantized("Mul (s, c)", without, powers)
    negative = model("Mul (s, c)")
    (number,) = (entry for entry in negative.graph.initializer if entry.name == "c")
    number.CopyFrom(numpy_helper.from_array(np.float32(-0.3), "c"))
    with_option, plain = (
        quantry.quantize(negative, SAMPLES, Recipe(plan=ASYMMETRIC, scale=options), store=None).to_bytes()
        for options in (KEPT, without)
    )
    assert scales(with_option) == scales(plain)


def test_the_second_rounding_is_exact() -> None:
    recipe = Recipe(plan=ASYMMETRIC, scale=KEPT)
    float_model = model("Mul (s, c)")
    for name in ("s", "m"):
        float_model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, [2, 8]))
    written = onnx.load_model_from_string(quantry.quantize(float_model, SAMPLES, recipe, store=None).to_bytes())
    for sample in SAMPLES:
        found = run(written, sample)
        before, after = found["s"], found["m"]
        np.testing.assert_allclose(after, before * np.float32(0.3), rtol=1e-3)
