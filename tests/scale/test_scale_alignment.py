"""One scale around operators."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest

import quantry
from quantry.errors import RecipeError
from quantry.recipe import DataType, MinMax, PlanOptions, Recipe, ScaleOptions, TensorSpec

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,8] y, float[2,4] z) {
    small = Tanh (x)
    large = Abs (x)
    joined = Concat <axis = 1> (small, large)
    y = LeakyRelu (joined)
    z = Neg (large)
}"""
DATA = [{"x": np.array([[-8.0, -1, 2, 4], [0, 1, 2, 3]], np.float32)}]


def scales(spec: TensorSpec, *align: str) -> dict[str, tuple[float, int]]:
    recipe = Recipe(
        plan=PlanOptions(spec, fused_activations=(), float_final_joins=False), scale=ScaleOptions(MinMax(), align=align)
    )
    result = quantry.quantize(onnx.parser.parse_model(TEXT), DATA, recipe, store=None)
    return {name: (float(entry.scale), int(entry.zero_point)) for name, entry in result.params.tensors.items()}


@pytest.mark.parametrize("symmetric", [True, False])
def test_inputs_and_output_of_concat_have_one_scale_that_reaches_as_far_as_all(symmetric: bool) -> None:
    spec = TensorSpec(DataType.INT8, symmetric=symmetric)
    apart, together = scales(spec), scales(spec, "Concat")
    assert apart["small"] != apart["large"]
    assert together["small"] == together["large"] == together["joined"]
    assert together["x"] == apart["x"]
    scale, zero_point = together["joined"]
    assert (127 - zero_point) * scale == pytest.approx(8.0, rel=0.02)
    assert (-128 - zero_point) * scale <= -1 + scale


def test_unknown_operator_raises_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'Concat'"):
        ScaleOptions(align=("Concatt",))


def test_preset_aligns_concat() -> None:
    assert replace(quantry.recipe.PRESETS["A8W8"].recipe).scale.align == ("Concat",)
