"""Equalization as part of a whole quantization."""

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quantry import quantize
from quantry.recipe import PRESETS, CrossLayer, EqualizeOptions, Recipe


@pytest.fixture
def model() -> onnx.ModelProto:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) {
            h = Conv(x, w0, b0)
            r = Relu(h)
            y = Conv(r, w1)
        }""")
    random = np.random.default_rng(0)
    spread = 10.0 ** np.linspace(-2, 1, 8)
    weights = {
        "w0": random.standard_normal((8, 3, 1, 1)) * spread[:, None, None, None],
        "b0": random.standard_normal(8) * spread,
        "w1": random.standard_normal((4, 8, 1, 1)) / spread[None, :, None, None],
    }
    proto.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return proto


@pytest.fixture
def data() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, 3, 6, 6)).astype(np.float32)} for _ in range(4)]


def test_recipe_without_equalization_has_no_such_stage(
    model: onnx.ModelProto, data: list[dict[str, np.ndarray]]
) -> None:
    result = quantize(model, data, Recipe(), store=None)
    assert result.stages.equalized is result.stages.prepared
    assert "equalize" not in [entry.stage for entry in result.trace.entries]


def test_equalization_helps_and_is_judged_by_the_original_model(
    model: onnx.ModelProto, data: list[dict[str, np.ndarray]]
) -> None:
    plain = quantize(model, data, Recipe(), store=None)
    result = quantize(model, data, Recipe(equalize=EqualizeOptions(CrossLayer())), store=None)
    assert result.trace.computed("equalize") == 1
    assert any("cross-layer equalization changed 2 of the 2 layers" in str(note) for note in result.notes)
    original = result.stages.prepared.value.model.graph.initializers["w0"].const_value.numpy()
    np.testing.assert_array_equal(original, numpy_helper.to_array(model.graph.initializer[0]))
    assert result.evaluation.metrics["sqnr"].value > plain.evaluation.metrics["sqnr"].value + 10


NOT_EQUALIZED = ("CPU_INT8", "UINT8_DYNAMIC_QUANT", "MATMUL_NBITS", "FP8_E4M3", "FP8_E5M2")


@pytest.mark.parametrize(
    "name",
    [name for name in PRESETS if name not in NOT_EQUALIZED and not name.startswith(("RECOMMENDED", "MATMUL_NBITS_"))],
)
def test_presets_of_amd_equalize_once(name: str) -> None:
    assert PRESETS[name].recipe.equalize == EqualizeOptions(CrossLayer(steps=1))


def test_second_run_with_another_method_equalizes_nothing_again(
    model: onnx.ModelProto, data: list[dict[str, np.ndarray]], tmp_path: object
) -> None:
    first = PRESETS["S8S8_AAWS"].recipe
    quantize(model, data, first, store=str(tmp_path))
    again = quantize(model, data, dataclasses.replace(first, scale=PRESETS["A8W8"].recipe.scale), store=str(tmp_path))
    assert (again.trace.reused("equalize"), again.trace.computed("equalize")) == (1, 0)
