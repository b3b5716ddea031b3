"""Cases of document 000: automatic search with a custom evaluator."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from PIL import Image
from seed_case import Case, Repair, Seed
from seed_models import images, kinds, outputs, saved

from quantry.onnx import CalibrationMethod, Config, PowerOfTwoMethod, QuantizationConfig, QuantType, get_default_config
from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig_Default
from quantry.recipe import AdaRound

_IMPORTS = "the enumerations are used without being imported"
_BODY = "        # step 6) return the metric"
_PLACEHOLDER = "the body is comments: the smallest one that returns a score"

REPAIRS: tuple[Repair, ...] = (
    Repair(1, "", "from quantry.onnx import CalibrationMethod, QuantType", _IMPORTS),
    Repair(3, "", "from quantry.onnx import PowerOfTwoMethod, QuantType", _IMPORTS),
    Repair(4, _BODY, f"{_BODY}\n        return score(onnx_path)", _PLACEHOLDER),
    Repair(5, _BODY, f"{_BODY}\n        return score(onnx_path)", _PLACEHOLDER),
    Repair(5, "auto_search_conig =", "auto_search_config =", "a letter is missing"),
    Repair(8, "[INPUT_MODEL_PATH]", "float.onnx", "a placeholder"),
    Repair(8, "[CALIB_DATA_PATH]", "calib", "a placeholder"),
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "auto_search_detector"


def score(path: str) -> float:
    """Score how small the outputs are; larger is better. Candidates are compared with the float model."""
    return -float(np.abs(outputs(path, images(1)[0])).mean())


def search(seed: Seed, **attributes: Any) -> AutoSearch:
    config = SimpleNamespace(search_output_dir=str(seed.folder / "out"), **attributes)
    start = Config(QuantizationConfig(include_cle=False))
    return AutoSearch(start, config, saved(seed.folder), images(3))


def one_space(seed: Seed) -> None:
    space = seed.run()["search_space"]
    instance = search(seed, search_space=space, search_metric="cos")
    # Moving averages belong to MinMax: (1 + 2) methods times 2 types, not 8.
    assert len(instance.all_configs) == 6
    found = instance.search_model()
    assert sorted(entry["config_index"] for entry in found) == list(range(6))
    best = min(found, key=lambda entry: entry["difference"])
    assert best["configuration"]["activation_type"] is QuantType.QInt16
    assert {("", "QuantizeLinear"), ("", "DequantizeLinear")} <= kinds(Path(best["model_path"]))
    zeros = {
        array.data_type
        for array in onnx.load(best["model_path"]).graph.initializer
        if array.name.endswith("_zero_point") and "image" in array.name
    }
    assert zeros == {onnx.TensorProto.INT16}


def several_spaces(seed: Seed) -> None:
    config = AutoSearchConfig_Default()
    config.search_output_dir = str(seed.folder / "out")
    config.search_stop_condition = {}
    start = get_default_config("S8S8_AAWS")
    start.calibrate_method = CalibrationMethod.MinMax
    instance = AutoSearch(Config(start), config, saved(seed.folder), images(3))
    names = seed.run(auto_search_ins=instance, auto_search_config=config)
    assert instance.all_configs == names["space1"] + names["space2"]
    assert [entry["calibrate_method"] for entry in names["space1"]] == [PowerOfTwoMethod.MinMSE] * 2
    instance.search_model()
    tried = [trial.recipe.scale.npu is not None for trial in instance.result.trials]
    assert tried[:2] == [True, True]  # the first space is tried first,
    assert not any(tried[2:])  # and nothing of it reaches the second


def gpu(seed: Seed) -> None:
    space = seed.run()["search_space_with_GPU"]
    instance = search(seed, search_space=space)
    assert len(instance.all_configs) == 2
    devices = [instance._maker(config).tune.steps[-1] for config in instance.all_configs]
    assert all(isinstance(step, AdaRound) for step in devices)
    assert {(step.device, step.inference_device) for step in devices} == {("cuda:0", "cuda:0")}
    # The same without a GPU, and with few iterations.
    space["extra_options"]["FastFinetune"] = {"OptimDevice": ["cpu"], "InferDevice": ["cpu"], "NumIterations": [5]}
    found = search(seed, search_space=space).search_model()
    assert len(found) == 2
    assert all({("", "QuantizeLinear")} <= kinds(Path(entry["model_path"])) for entry in found)


def own_evaluator(seed: Seed, config: Any) -> None:
    instance = AutoSearch(Config(QuantizationConfig(include_cle=False)), config, saved(seed.folder), images(3))
    instance.settings = type(instance.settings).of(
        SimpleNamespace(
            search_evaluator=instance.settings.search_evaluator,
            search_space={"activation_type": [QuantType.QInt8, QuantType.QInt16]},
            search_output_dir=str(seed.folder / "out"),
        )
    )
    found = instance.search_model()
    reference = score(saved(seed.folder))
    assert len(found) == 2
    for entry in found:
        assert abs(entry["difference"] - (reference - score(entry["model_path"]))) < 1e-6


def evaluator_in_the_class(seed: Seed) -> None:
    own_evaluator(seed, seed.run(score=score)["AutoSearchConfig_Default"])
    instance = seed.run(score=score)["AutoSearchConfig_Default"]()
    assert AutoSearch("float.onnx", "S8S8_AAWS", instance).settings.search_evaluator is not None


def evaluator_of_an_instance(seed: Seed) -> None:
    names = seed.run(score=score, AutoSearchConfig_Default=AutoSearchConfig_Default)
    own_evaluator(seed, names["auto_search_config"])


def model_to_download(seed: Seed) -> None:
    # The address of a model. The example takes one by --input_model_path, and the embedded one where none is given.
    assert seed.block.text.strip() == "https://huggingface.co/amd/yolov3/tree/main"
    assert "--input_model_path" in (EXAMPLE / "quark_quantize.py").read_text()


def starting_configuration(seed: Seed) -> None:
    name = seed.run()["default_config"]
    assert AutoSearch("float.onnx", name)._maker.base == get_default_config("S8S8_AAWS")
    assert AutoSearch("float.onnx", Config(global_quant_config=get_default_config(name))).settings is not None


def command_line(seed: Seed) -> None:
    saved(seed.folder)
    (seed.folder / "calib").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 255, (9, 7, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(seed.folder / "calib" / f"{number}.png")
    (command,) = seed.commands()
    command[1] = str(EXAMPLE / command[1])
    done = subprocess.run(
        [*command, "--trials", "2"], cwd=seed.folder, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    output = seed.folder / "auto_search_detector"
    assert {"auto_search.log", "search.json", "best.onnx", "recipe.yaml"} <= {path.name for path in output.iterdir()}
    assert "difference" in done.stdout


CASES: dict[int, Case] = {
    1: one_space,
    2: several_spaces,
    3: gpu,
    4: evaluator_in_the_class,
    5: evaluator_of_an_instance,
    6: model_to_download,
    7: starting_configuration,
    8: command_line,
}

PENDING: dict[int, str] = {}
