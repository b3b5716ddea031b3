"""AutoSearch as documents 000 and 001 describe it, without the bugs of AMD Quark."""

import copy
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from search_models import Reader, net, samples, saved_net, settings, space

from quantry.errors import RecipeError
from quantry.onnx import Config, QuantizationConfig, QuantType, get_default_config
from quantry.onnx.auto_search import AutoSearch, AutoSearchConfig, AutoSearchConfig_Default
from quantry.onnx.auto_search.configuration import index_of
from quantry.onnx.auto_search.evaluators import UserEvaluator
from quantry.quantization import quantize
from quantry.recipe import load_recipe


def start() -> QuantizationConfig:
    return QuantizationConfig(include_cle=False)


def mean_of_outputs(path: str) -> float:
    """Return a score: how close the first output of the first sample is to that of the float model."""
    session = onnxruntime.InferenceSession(path)
    (output,) = session.run(None, samples(1)[0])
    return -float(np.abs(output).sum())


def test_both_orders_of_arguments_and_all_keywords_are_accepted(tmp_path: Path) -> None:
    model, config, search = saved_net(tmp_path), Config(start()), settings(tmp_path)
    made = [
        AutoSearch(config, search, model, Reader()),
        AutoSearch(model, config, search, None, Reader()),
        AutoSearch(model_input=model, config=config, auto_search_config=search, calibration_data_reader=Reader()),
        AutoSearch(config, search, float_onnx_model_path=model, calib_data_reader=Reader()),
        AutoSearch(model, "S8S8_AAWS", search),
    ]
    assert {instance.model_input for instance in made} == {model}
    assert all(len(instance.all_configs) == 6 for instance in made)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (("m.onnx",), {}, "needs 'config'"),
        (("m.onnx", "S8S8_AAWS"), {"model_input": "m"}, "twice"),
        (("m.onnx", "S8S8_AAWS"), {"search_config": 1}, "did you mean 'auto_search_config'"),
        (("m.onnx", 7), {}, "takes a QuantizationConfig"),
        (("m.onnx", "S8S8"), {}, "S8S8_AAWS"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: tuple, keywords: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        AutoSearch(*arguments, **keywords)


def test_candidates_are_described_and_files_are_written(tmp_path: Path) -> None:
    search = AutoSearch(Config(start()), settings(tmp_path), saved_net(tmp_path), Reader())
    found = search.search_model()
    assert len(found) == 6
    assert sorted(entry["config_index"] for entry in found) == list(range(6))
    for entry in found:
        assert entry["configuration"] == search.all_configs[entry["config_index"]]
        assert entry["difference"] == entry["metrics"]["score"] > 0  # L2 of the float model is 0
        assert entry["within_tolerance"]
        assert entry["timings"]["seconds"] > 0
        onnx.checker.check_model(entry["model_path"])
    best = min(found, key=lambda entry: entry["difference"])
    assert best["configuration"]["activation_type"] is QuantType.QInt16
    output = tmp_path / "out"
    again = quantize(saved_net(tmp_path), samples(), load_recipe(output / "recipe.yaml"), store=None)
    assert again.to_bytes() == (output / "best.onnx").read_bytes()


def test_difference_is_that_of_the_configuration_alone(tmp_path: Path) -> None:
    """Nothing leaks from one trial into the next."""
    search = AutoSearch(Config(start()), settings(tmp_path), saved_net(tmp_path), Reader())
    for entry in search.search_model():
        alone = AutoSearch(
            Config(start()), settings(tmp_path / f"alone{entry['config_index']}"), saved_net(tmp_path), Reader()
        )
        alone.all_configs = [entry["configuration"]]
        assert alone.search_model()[0]["difference"] == entry["difference"]


@pytest.mark.parametrize("form", ["class", "instance", "look-alike", "none"])
def test_configuration_in_any_form_is_only_read(tmp_path: Path, form: str) -> None:
    attributes = {"search_space": space(), "search_output_dir": str(tmp_path / "out"), "search_algo": None}
    given: Any = type("Mine", (), dict(attributes))
    if form == "instance":
        given = given()
    elif form == "look-alike":
        given = types.SimpleNamespace(**attributes)
    elif form == "none":
        assert AutoSearch(saved_net(tmp_path), start()).settings.search_metric == "L2"
        return
    before = copy.deepcopy({name: getattr(given, name) for name in attributes}), sorted(vars(given))
    config = Config(start())
    kept = repr(config)
    assert len(AutoSearch(config, given, saved_net(tmp_path), Reader()).search_model()) == 6
    assert ({name: getattr(given, name) for name in attributes}, sorted(vars(given))) == before
    assert repr(config) == kept


def test_defaults_do_not_depend_on_assignments_to_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoSearchConfig, "search_metric", "cos")
    assert AutoSearch(saved_net(tmp_path), start(), types.SimpleNamespace()).settings.search_metric == "L2"
    assert AutoSearch(saved_net(tmp_path), start(), AutoSearchConfig).settings.search_metric == "cos"


@pytest.mark.parametrize(
    ("metric", "tolerance"), [("cos", 1e-4), ("psnr", 105.0), ("ssim", 1e-3), ("L1", 0.01), ("L2", 1e-3)]
)
def test_good_models_are_accepted_and_bad_ones_are_not_with_any_metric(
    tmp_path: Path, metric: str, tolerance: float
) -> None:
    given = space() | {"weight_type": [QuantType.QInt4, QuantType.QInt8]}
    config = settings(tmp_path, search_space=given, search_metric=metric, search_metric_tolerance=tolerance)
    search = AutoSearch(Config(start()), config, saved_net(tmp_path), Reader())
    kept = search.search_model()
    assert search.result is not None
    accepted = {entry["config_index"] for entry in kept}
    assert 0 < len(accepted) < 12
    scores = {trial.number: trial.drop for trial in search.result.trials}
    assert len(scores) == 12
    assert max(entry["difference"] for entry in kept) <= tolerance
    refused = [trial for trial in search.result.trials if not trial.accepted]
    assert all(trial.drop > tolerance for trial in refused)
    assert all(trial.recipe.plan.weight.dtype.bits == 4 for trial in refused if trial.drop == max(scores.values()))


def test_nothing_within_tolerance_returns_the_best_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path, search_metric_tolerance=1e-12)
    search = AutoSearch(Config(start()), config, saved_net(tmp_path), Reader())
    (only,) = search.search_model()
    assert not only["within_tolerance"]
    assert only["difference"] == min(trial.drop for trial in search.result.trials)
    assert "nothing is within the tolerance" in caplog.text
    assert Path(only["model_path"]).exists()


def test_several_spaces_are_tried_in_order(tmp_path: Path) -> None:
    search = AutoSearch(Config(start()), settings(tmp_path, n_jobs=1), saved_net(tmp_path), Reader())
    first = search.build_all_configs({"activation_type": [QuantType.QInt16], "per_channel": [True, False]})
    second = search.build_all_configs(space())
    search.all_configs = first + second
    assert len(search.all_configs) == 8
    search.search_model()
    tried = [index_of(trial.assignment) for trial in search.result.trials]
    # Number 1 and a later one are duplicates; the first stays.
    assert tried == sorted(tried)
    assert tried[:2] == [0, 1]
    assert len(tried) == 7


def test_options_of_one_space_do_not_leak_into_the_next(tmp_path: Path) -> None:
    search = AutoSearch(
        Config(get_default_config("S8S8_AAWS")), AutoSearchConfig_Default, saved_net(tmp_path), Reader()
    )
    search.settings = type(search.settings).of(settings(tmp_path))
    xint8 = search.build_all_configs(AutoSearchConfig_Default.search_space_XINT8)
    plain = search.build_all_configs(space())
    search.all_configs = xint8 + plain
    search.search_model()
    npu = [trial.recipe.scale.npu is not None for trial in search.result.trials]
    assert npu == [True] * len(xint8) + [False] * (len(npu) - len(xint8))


@pytest.mark.parametrize("stop", [{"iteration_limit": 2}, {"find_n_candidates": 2, "time_limit": -1}])
def test_any_entry_of_the_stop_condition_may_be_missing(tmp_path: Path, stop: dict) -> None:
    config = settings(tmp_path, search_stop_condition=stop)
    search = AutoSearch(Config(start()), config, saved_net(tmp_path), Reader())
    search.search_model()
    assert len(search.result.trials) == 2


def test_failing_evaluator_fails_only_its_trial(tmp_path: Path) -> None:
    calls = []

    def evaluator(path: str) -> float:
        calls.append(path)
        if len(calls) == 3:
            raise ValueError("this one")
        return mean_of_outputs(path)

    search = AutoSearch(Config(start()), settings(tmp_path, search_evaluator=evaluator), saved_net(tmp_path), Reader())
    search.search_model()
    states = [trial.state for trial in search.result.trials]
    assert states.count("failed") == 1
    assert states.count("complete") == 5


class WithStatic:
    @staticmethod
    def custom_evaluator(onnx_path: str, **args: Any) -> float:
        assert {"eval_dataloader", "model_input", "cache_dir"} <= set(args)
        return mean_of_outputs(onnx_path)

    search_evaluator = custom_evaluator


class WithPlain:
    def search_evaluator(onnx_path: str) -> float:  # noqa: N805
        return mean_of_outputs(onnx_path)


class WithSelf:
    def search_evaluator(self, onnx_path: str, output_dir: str) -> float:
        assert output_dir.endswith("out")
        return mean_of_outputs(onnx_path)


@pytest.mark.parametrize("kind", [WithStatic, WithPlain, WithSelf])
@pytest.mark.parametrize("instance", [True, False])
def test_evaluator_can_be_function_static_method_or_method(tmp_path: Path, kind: type, instance: bool) -> None:
    if kind is WithSelf and not instance:
        pytest.skip("a method needs an instance")
    mine = type("Mine", (kind,), {"search_space": space(), "search_output_dir": str(tmp_path / "out")})
    search = AutoSearch(Config(start()), mine() if instance else mine, saved_net(tmp_path), Reader())
    found = search.search_model()
    reference = mean_of_outputs(saved_net(tmp_path))
    for entry in found:
        assert entry["difference"] == pytest.approx(reference - entry["metrics"]["score"])


def test_evaluator_can_be_minimized(tmp_path: Path) -> None:
    def loss(path: str) -> float:
        return -mean_of_outputs(path)

    loss.direction = "minimize"
    search = AutoSearch(Config(start()), settings(tmp_path, search_evaluator=loss), saved_net(tmp_path), Reader())
    found = search.search_model()
    best = min(found, key=lambda entry: entry["metrics"]["score"])
    assert best["difference"] == min(entry["difference"] for entry in found)


def test_reader_that_can_be_read_once_serves_calibration_and_evaluation(tmp_path: Path) -> None:
    search = AutoSearch(Config(start()), settings(tmp_path), saved_net(tmp_path), Reader())
    assert all(np.isfinite(entry["difference"]) for entry in search.search_model())


def test_model_can_be_in_memory(tmp_path: Path) -> None:
    search = AutoSearch(net(), Config(start()), settings(tmp_path), samples(2), Reader())
    assert len(search.search_model()) == 6


@pytest.mark.parametrize("algorithm", ["random", "TPE", "NSGAII"])
def test_every_algorithm_finds_all_six_configurations(tmp_path: Path, algorithm: str) -> None:
    search = AutoSearch(Config(start()), settings(tmp_path, search_algo=algorithm), saved_net(tmp_path), Reader())
    assert sorted(entry["config_index"] for entry in search.search_model()) == list(range(6))


def test_second_search_resumes_the_first(tmp_path: Path) -> None:
    calls = []

    def evaluator(path: str) -> float:
        calls.append(path)
        return mean_of_outputs(path)

    config = settings(tmp_path, search_evaluator=evaluator, search_stop_condition={"iteration_limit": 3})
    AutoSearch(Config(start()), config, saved_net(tmp_path), Reader()).search_model()
    assert len(calls) == 4  # three and the float model
    config.search_stop_condition = {}
    AutoSearch(Config(start()), config, saved_net(tmp_path), Reader()).search_model()
    assert len(calls) == 8


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("search_metric", "cosin", "did you mean 'cosine'.; in MySearch.search_metric"),
        ("search_algo", "grid_serch", "did you mean 'grid_search'"),
        ("search_metirc", "L2", "did you mean 'search_metric'"),
        ("search_stop_condition", {"iteration_limits": 3}, "did you mean 'iteration_limit'"),
        ("search_stop_condition", {"iteration_limit": 0}, "at least 1, got 0; given as 'iteration_limit'"),
        ("advanced_fastft_params", {"sampler": "TPE"}, "did you mean 'sampler_algo'"),
        ("advanced_fastft_params", {"direction": "down"}, "'minimize' or 'maximize'"),
        ("search_devices", "gpu", "cuda:0"),
        ("search_evaluator", 7, "callable"),
    ],
)
def test_invalid_settings_are_rejected_at_once(tmp_path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        AutoSearch(saved_net(tmp_path), start(), settings(tmp_path, **{name: value}))


def test_search_json_is_written(tmp_path: Path) -> None:
    AutoSearch(Config(start()), settings(tmp_path), saved_net(tmp_path), Reader()).search_model()
    path = tmp_path / "out" / "search.json"
    assert len(json.loads(path.read_text())["trials"]) == 6


def test_two_workers_find_the_same_as_one(tmp_path: Path) -> None:
    def evaluator(path: str) -> float:
        return mean_of_outputs(path)

    found = []
    for jobs in (1, 2):
        config = settings(tmp_path / str(jobs), search_evaluator=evaluator, n_jobs=jobs)
        entries = AutoSearch(Config(start()), config, saved_net(tmp_path), Reader()).search_model()
        found.append([(entry["config_index"], entry["difference"]) for entry in entries])
    assert found[0] == found[1]


def test_racing_ends_with_the_same_best(tmp_path: Path) -> None:
    given = space() | {"weight_type": [QuantType.QInt4, QuantType.QInt8]}
    best = []
    for racing in (False, True):
        config = settings(tmp_path / str(racing), search_space=given, search_racing=racing)
        search = AutoSearch(saved_net(tmp_path), Config(start()), config, samples(40), Reader())
        search.search_model()
        best.append((search.result.best.recipe, search.result.best.score))
    assert best[0] == best[1]


def test_options_that_change_the_float_model_are_rejected() -> None:
    with pytest.raises(RecipeError, match="FixShapes"):
        AutoSearch("m.onnx", QuantizationConfig(extra_options={"FixShapes": "x:[1,3,6,6]"}))


def test_configuration_can_be_a_dict(tmp_path: Path) -> None:
    search = AutoSearch(saved_net(tmp_path), start(), {"search_metric": "cos", "n_jobs": 3})
    assert (search.settings.search_metric, search.settings.n_jobs) == ("cos", 3)


def test_fingerprint_of_a_function_is_stable() -> None:
    source = "def score(path):\n    return sum([len(part) for part in path.split()]) + (lambda x: x)(1)\n"
    marks = []
    for name in ("first.py", "second.py"):
        names: dict[str, Any] = {}
        exec(compile(source, name, "exec"), names)
        marks.append(UserEvaluator(names["score"]).fingerprint)
    names = {}
    exec(source.replace("(1)", "(2)"), names)
    assert marks[0] == marks[1] != UserEvaluator(names["score"]).fingerprint


def test_fingerprint_of_a_function_covers_its_closure() -> None:
    def at(threshold: float) -> Any:
        return lambda path: len(path) > threshold

    assert UserEvaluator(at(1)).fingerprint == UserEvaluator(at(1)).fingerprint != UserEvaluator(at(2)).fingerprint


def test_evaluator_objects_are_used_unchanged(tmp_path: Path) -> None:
    from quantry.evaluate.tasks import distance_evaluator

    evaluator = distance_evaluator(saved_net(tmp_path), samples(), "cosine")
    search = AutoSearch(Config(start()), settings(tmp_path, search_evaluator=evaluator), saved_net(tmp_path), Reader())
    assert all(entry["metrics"]["interval"] is not None for entry in search.search_model())


def test_search_has_one_folder_and_names_its_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved_net(tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    mine = type("Mine", (), {"search_space": space()})
    AutoSearch(start(), mine, model, Reader()).search_model()
    assert sorted(path.name for path in folder.iterdir()) == ["auto_search", "auto_search.log"]
    assert (folder / "auto_search" / "best.onnx").exists()
    assert "best model: auto_search/best.onnx" in capsys.readouterr().out
