"""Cases of document 002: accuracy improvement."""

from pathlib import Path

import numpy as np
import pytest
from seed_case import Case, Repair, Seed
from seed_models import CNN, PERCEPTRON, constants, images, is_power_of_two, kinds, outputs, saved

_MISSING = "quark.onnx and QuantFormat are used without being imported"

REPAIRS: tuple[Repair, ...] = tuple(
    Repair(number, "", "import quantry.onnx\nfrom quantry.onnx import QuantFormat", _MISSING) for number in (1, 2, 3, 4)
)


def run(seed: Seed, text: str = CNN) -> Path:
    """Run a snippet, whose reader of None is random data, and return what it has written."""
    path = seed.folder / "quantized.onnx"
    with pytest.warns(UserWarning, match="random"):
        seed.run(input_model_path=saved(seed.folder, text), output_model_path=str(path))
    return path


def scales(path: Path) -> list[float]:
    return [float(value) for name, value in constants(path).items() if name.endswith("_scale")]


def npu_model(path: Path) -> None:
    """What all snippets with enable_npu_cnn promise: Q/DQ pairs, powers of two, types."""
    assert {("", "QuantizeLinear"), ("", "DequantizeLinear")} <= kinds(path)
    assert scales(path)
    assert all(is_power_of_two(scale) for scale in scales(path))
    zeros = {name: value for name, value in constants(path).items() if name.endswith("_zero_point")}
    assert zeros["image_zero_point"].dtype == np.uint8
    assert int(zeros["image_zero_point"]) == 128


def cross_layer_equalization(seed: Seed) -> None:
    path = run(seed)
    npu_model(path)
    assert "Clip" not in {kind for _, kind in kinds(path)}  # ReplaceClip6Relu
    plain = Seed(seed.block, (*seed.repairs, Repair(1, "include_cle=True", "include_cle=False", "")), seed.folder)
    before = constants(path)["w1_quantized"]
    assert not np.array_equal(before, constants(run(plain))["w1_quantized"])
    assert outputs(path, images(1)[0]).shape == (2, 5)


def fast_finetune(seed: Seed) -> None:
    path = run(seed)
    npu_model(path)
    plain = Seed(
        seed.block, (*seed.repairs, Repair(3, "include_fast_ft=True", "include_fast_ft=False", "")), seed.folder
    )
    learnt, nearest = constants(path), constants(run(plain))
    assert learnt.keys() == nearest.keys()
    steps = learnt["w1_quantized"].astype(int) - nearest["w1_quantized"].astype(int)
    assert np.abs(steps).max() == 1  # AdaRound rounds up or down and nothing else.


def smooth_quant(seed: Seed) -> None:
    path = run(seed, PERCEPTRON)
    assert {("", "QuantizeLinear"), ("", "DequantizeLinear")} <= kinds(path)
    assert all(is_power_of_two(scale) for scale in scales(path))
    plain = Seed(seed.block, (*seed.repairs, Repair(4, "include_sq=True", "include_sq=False", "")), seed.folder)
    assert not np.array_equal(constants(path)["w2_quantized"], constants(run(plain, PERCEPTRON))["w2_quantized"])


CASES: dict[int, Case] = {1: cross_layer_equalization, 3: fast_finetune, 4: smooth_quant}

PENDING: dict[int, str] = {2: "mixed precision"}
