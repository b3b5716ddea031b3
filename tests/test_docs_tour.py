"""The tiny version in docs/tour runs, and says the same as the product."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from quantry import quantize
from quantry.recipe import DataType, PerChannel, PlanOptions, Recipe, TensorSpec

TOUR = Path(__file__).parents[1] / "docs" / "tour" / "mini.py"


@pytest.fixture(scope="module")
def mini() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quantry_tour_mini", TOUR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tour_is_short_and_its_convolution_survives(mini: ModuleType) -> None:
    assert len(TOUR.read_text(encoding="utf-8").splitlines()) <= 170
    assert mini.main() > 35
    assert mini.main(90.0) < mini.main()


def test_tour_and_product_give_the_same_grids_and_outputs(mini: ModuleType) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(8, 3, 3, 3)).astype(np.float32)
    model = mini.float_model(weight, rng.normal(size=8).astype(np.float32))
    samples = [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(4)]
    recipe = Recipe(
        plan=PlanOptions(
            activation=TensorSpec(DataType.UINT8, symmetric=False), weight=TensorSpec(granularity=PerChannel())
        )
    )
    result = quantize(model, [{"x": sample} for sample in samples], recipe, store=None)
    observed = mini.observe(model, samples)
    x, y = (mini.activation_grid(*mini.percentile_range(observed[name], 100)) for name in ("x", "y"))
    w = mini.weight_grid(weight)
    grids = {"x": x, "w": w, "b": mini.bias_grid(x, w), "y": y}
    assert set(grids) == set(result.params.tensors)
    for name, grid in grids.items():
        np.testing.assert_allclose(result.params.tensors[name].scale, grid.scale, rtol=1e-6)
        np.testing.assert_array_equal(result.params.tensors[name].zero_point, grid.zero_point)
    outputs = mini.run(mini.emit(model, grids), samples[0])
    ours = mini.run(mini.onnx.load_from_string(result.to_bytes()), samples[0])
    np.testing.assert_allclose(outputs, ours, atol=1.001 * float(y.scale))
