"""Cases of document 002: accuracy improvement."""

from pathlib import Path

import numpy as np
import pytest
from seed_case import Case, Repair, Seed
from seed_models import CNN, PERCEPTRON, Reader, constants, images, is_power_of_two, kinds, outputs, saved

_MISSING = "quark.onnx and QuantFormat are used without being imported"

REPAIRS: tuple[Repair, ...] = (
    *(
        Repair(number, "", "import quantry.onnx\nfrom quantry.onnx import QuantFormat", _MISSING)
        for number in (1, 2, 3, 4)
    ),
    Repair(2, "'WeightTargetQuantType'::", "'WeightTargetQuantType':", "a double colon"),
    Repair(2, "['label1', 'label2', 'label3', ...]", "known_labels", "placeholder text: the labels of the samples"),
    Repair(
        2, "calibration_data_reader=None", "calibration_data_reader=reader", "labels belong to samples, not to noise"
    ),
)


def run(seed: Seed, text: str = CNN) -> Path:
    """Run a snippet, in which a reader of None is random data, and return the model it writes."""
    path = seed.folder / "quantized.onnx"
    with pytest.warns(UserWarning, match="random"):
        seed.run(input_model_path=saved(seed.folder, text), output_model_path=str(path))
    return path


def scales(path: Path) -> list[float]:
    return [float(value) for name, value in constants(path).items() if name.endswith("_scale")]


def npu_model(path: Path) -> None:
    """Check what all snippets with enable_npu_cnn promise: Q/DQ pairs, power-of-two scales, types."""
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


def mixed_precision(seed: Seed) -> None:
    source, path = saved(seed.folder), seed.folder / "quantized.onnx"
    samples = images(8)
    labels = np.concatenate([outputs(source, sample).argmax(axis=1) for sample in samples]).tolist()
    names = seed.run(input_model_path=source, output_model_path=str(path), known_labels=labels, reader=Reader(samples))
    assert kinds(path) & {("com.microsoft", "QuantizeLinear")}
    types = {value.dtype.name for name, value in constants(path).items() if name.endswith("_zero_point")}
    assert "int8" in types  # what could be demoted was
    found = np.concatenate([outputs(path, sample) for sample in samples])
    assert names["top1_acc"](names["torch"].from_numpy(found)) >= 1 - 0.1  # Top1AccTarget
    strict = Repair(2, "'Top1AccTarget': 0.1", "'Top1AccTarget': -1.0", "")
    kept = Seed(seed.block, (*seed.repairs, strict), seed.folder)
    kept.run(input_model_path=source, output_model_path=str(path), known_labels=labels, reader=Reader(samples))
    wide = {name: value.dtype for name, value in constants(path).items() if name.endswith("_zero_point")}
    assert wide["image_zero_point"] == np.int16  # nothing may be demoted, so that the higher precision stays


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


CASES: dict[int, Case] = {1: cross_layer_equalization, 2: mixed_precision, 3: fast_finetune, 4: smooth_quant}

PENDING: dict[int, str] = {}
