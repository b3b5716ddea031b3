"""Cases of document 001: the guide to automatic search."""

from pathlib import Path
from typing import Any

from seed_case import Case, Repair, Seed
from seed_models import images, saved

from quantry.onnx import CalibrationMethod, Config, QuantizationConfig
from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig

REPAIRS: tuple[Repair, ...] = (
    Repair(2, '"n_trials": 10', '"n_trials": 4', "shorter: four trials instead of ten"),
    Repair(2, "[100, 200]", "[10, 20]", "shorter: fewer iterations"),
    Repair(3, "[[100, 1e-4], [200, 1e-5]]", "[[10, 1e-4], [20, 1e-5]]", "shorter: fewer iterations"),
    Repair(4, "", "from quantry.onnx import QuantType", "QuantType is used without being imported"),
    Repair(4, "'NumIterations': [100, 1000],", "'NumIterations': [5],", "shorter: few iterations"),
    Repair(4, "'LearningRate': [0.01, 0.001, 0.0001],", "'LearningRate': [0.01],", "shorter: one learning rate"),
    Repair(4, '"iteration_limit": 1000,', '"iteration_limit": 8,', "shorter: eight trials instead of a thousand"),
)


def start(**settings: Any) -> Config:
    return Config(QuantizationConfig(include_cle=False, **settings))


def two_stages(seed: Seed) -> None:
    given = seed.run()["Auto_search_config"]

    class Mine(given):
        search_output_dir = str(seed.folder / "out")
        search_space = {  # noqa: RUF012
            "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
            "include_fast_ft": [False, True],
            "extra_options": {"FastFinetune": {"NumIterations": [2, 4], "LearningRate": [0.1]}},
        }
        search_stop_condition = {"iteration_limit": 1}  # disabled in both stages  # noqa: RUF012

    instance = AutoSearch(start(), Mine, saved(seed.folder), images(2))
    (best,) = instance.search_model()
    assert len(instance.stages) == 2
    calibration, finetuning = instance.stages
    assert len(calibration.trials) == 2  # each calibration once,
    assert all(trial.recipe.tune.steps == () for trial in calibration.trials)
    assert len(finetuning.trials) == 2  # and each setting of finetuning once, on the best of them
    assert {trial.recipe.scale.activation for trial in finetuning.trials} == {calibration.best.recipe.scale.activation}
    assert best["difference"] == min(calibration.best.drop, finetuning.best.drop)
    assert Path(best["model_path"]).exists()
    Mine.search_space = {"calibrate_method": [CalibrationMethod.MinMax]}
    Mine.search_output_dir = str(seed.folder / "normal")
    assert len(AutoSearch(start(), Mine, saved(seed.folder), images(2)).search_model()) == 1  # one part is missing


def finetuning_parameters(seed: Seed) -> None:
    given = seed.run()["Auto_search_config"]
    given.search_output_dir = str(seed.folder / "out")
    instance = AutoSearch(start(include_fast_ft=True), given, saved(seed.folder), images(2))
    found = instance.search_model()
    assert len(found) == 4
    settings = [entry["configuration"]["extra_options"]["FastFinetune"] for entry in found]
    assert all(10 <= one["NumIterations"] <= 20 and 1e-7 <= one["LearningRate"] <= 1e-3 for one in settings)
    assert len({one["LearningRate"] for one in settings}) == 4
    assert found[0]["difference"] == min(entry["difference"] for entry in found)
    assert instance.result.trials[0].recipe.tune.steps[-1].iterations == settings_of(instance, 0)["NumIterations"]


def settings_of(instance: AutoSearch, number: int) -> dict[str, Any]:
    assignment = instance.result.trials[number].assignment
    return {name.rpartition(".")[2]: value for name, value in assignment.items()}


def joint_parameter(seed: Seed) -> None:
    given = seed.run()["Auto_search_config"]
    given.search_output_dir = str(seed.folder / "out")
    instance = AutoSearch(start(), given, saved(seed.folder), images(2))
    assert len(instance.all_configs) == 2
    instance.search_model()
    steps = [trial.recipe.tune.steps[-1] for trial in instance.result.trials]
    assert {(step.iterations, step.learning_rate) for step in steps} == {(10, 1e-4), (20, 1e-5)}


def whole_example(seed: Seed) -> None:
    before = {name: getattr(AutoSearchConfig, name) for name in vars(AutoSearchConfig) if name.startswith("search_")}
    try:
        names = seed.run(
            quantization_config=start(),
            float_onnx_model_path=saved(seed.folder),
            calibration_data_reader=images(2),
        )
    finally:
        # The document assigns to the class itself.
        for name, value in before.items():
            setattr(AutoSearchConfig, name, value)
    found, instance = names["searched_candidates"], names["auto_search_instance"]
    assert len(found) == len(instance.result.trials) == 8
    for entry in found:
        assert {"config_index", "difference", "model_path", "configuration", "metrics", "timings"} <= set(entry)
        assert Path(entry["model_path"]).exists()
        assert entry["configuration"] == instance.all_configs[entry["config_index"]]
    log = (seed.folder / "auto_search.log").read_text()  # FAQ 1: in the working directory, under this name
    assert "trial 7: complete" in log
    assert "calibrate_method" in log


CASES: dict[int, Case] = {1: two_stages, 2: finetuning_parameters, 3: joint_parameter, 4: whole_example}

PENDING: dict[int, str] = {}
