"""Nested dictionaries become conditional spaces, and configurations become recipes."""

import itertools
import random
from collections.abc import Callable

import pytest
from onnxruntime.quantization.calibrate import CalibrationMethod as TheirMethod
from search_models import space

from quantry.errors import RecipeError
from quantry.onnx import CalibrationMethod, LayerWiseMethod, PowerOfTwoMethod, QuantizationConfig, QuantType
from quantry.onnx.auto_search import AutoSearchConfig_Default, SearchSpace, generate_all_configs
from quantry.onnx.auto_search.configuration import RecipeMaker, applied, flattened, nested
from quantry.onnx.auto_search.predefined_spaces import SPACES, default_space
from quantry.onnx.translate import translate
from quantry.recipe import Recipe

MIN_MAX, PERCENTILE = CalibrationMethod.MinMax, CalibrationMethod.Percentile


def test_space_of_document_000_has_no_duplicates() -> None:
    configs = generate_all_configs(space())
    assert len(configs) == 6
    recipes = [translate(applied(QuantizationConfig(), config)).recipe for config in configs]
    assert len(set(recipes)) == 6
    assert sum("extra_options" in config for config in configs) == 4  # the moving average exists with MinMax only


def test_first_key_changes_slowest() -> None:
    configs = generate_all_configs(
        {"activation_type": [QuantType.QInt8, QuantType.QInt16], "include_cle": [True, False]}
    )
    assert [(config["activation_type"].name, config["include_cle"]) for config in configs] == [
        ("QInt8", True),
        ("QInt8", False),
        ("QInt16", True),
        ("QInt16", False),
    ]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"calibrate_method": [MIN_MAX, PERCENTILE], "extra_options": {"Percentile": [99.9, 99.99]}}, 3),
        (
            {
                "calibrate_method": [TheirMethod.MinMax, TheirMethod.Percentile],
                "extra_options": {"Percentile": [99, 98]},
            },
            3,
        ),
        ({"extra_options": {"Percentile": [99.9, 99.99]}}, 1),  # the starting configuration has MinMax
        ({"extra_options": {"CalibMovingAverage": [True, False], "CalibMovingAverageConstant": [0.1, 0.2]}}, 3),
        ({"include_fast_ft": [False, True], "extra_options": {"FastFinetune": {"NumIterations": [1, 2]}}}, 3),
        ({"extra_options": {"FastFinetune": {"NumIterations": [1, 2]}}}, 1),
        ({"include_cle": [True, False], "extra_options": {"CLESteps": [1, 2]}}, 3),
        (
            {
                "include_fast_ft": [True],
                "extra_options": {"FastFinetune": {"OptimAlgorithm": ["adaround", "adaquant"], "RegParam": [0.1, 0.2]}},
            },
            3,
        ),
        ({"include_fast_ft": [True], "extra_options": {"FastFinetune": {"NumIterLR": [[9, 0.1], [8, 0.2]]}}}, 2),
    ],
)
def test_options_exist_only_if_they_have_an_effect(given: dict, count: int) -> None:
    assert len(generate_all_configs(given)) == count


def test_conditions_include_the_starting_configuration() -> None:
    base = QuantizationConfig(calibrate_method=PERCENTILE)
    assert len(generate_all_configs({"extra_options": {"Percentile": [99.9, 99.99]}}, base)) == 2
    tuned = QuantizationConfig(include_fast_ft=True)
    assert len(generate_all_configs({"extra_options": {"FastFinetune": {"LearningRate": [0.1, 0.2]}}}, tuned)) == 2


def test_invalid_configurations_are_removed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    given = {
        "calibrate_method": [PowerOfTwoMethod.MinMSE, MIN_MAX],
        "enable_npu_cnn": [True],
        "extra_options": {"ActivationSymmetric": [True, False]},
    }
    (kept,) = generate_all_configs(given)
    assert kept["calibrate_method"] is PowerOfTwoMethod.MinMSE
    assert "1 configurations; 3 are invalid" in caplog.text
    assert "PowerOfTwoMethod with enable_npu_cnn" in caplog.text


def test_default_space_is_filtered() -> None:
    product = 1
    for values in flattened(default_space()).values():
        product *= len(values)
    assert product == 589_824
    small = default_space()
    small |= {"include_sq": [False], "include_auto_mp": [False], "include_cle": [False], "include_fast_ft": [False]}
    kept = SearchSpace(small).get_all_configs()
    # 5 methods of one form, MinMax of three (two constants of the average), Percentile of two; 4 pairs of types,
    # 4 of symmetries.
    assert len(kept) == (4 + 3 + 2) * 4 * 4


@pytest.mark.parametrize("name", SPACES)
def test_predefined_spaces_hold_valid_configurations(name: str) -> None:
    assert getattr(AutoSearchConfig_Default, name) == SPACES[name]
    assert generate_all_configs(SPACES[name], QuantizationConfig(calibrate_method=MIN_MAX))


def test_recipes_built_in_two_parts_equal_those_of_the_table() -> None:
    given = default_space()
    given["calibrate_method"].append(LayerWiseMethod.LayerWisePercentile)
    base = QuantizationConfig(extra_options={"FastFinetune": {"BatchSize": 2}, "Percentile": 99.5})
    built = SearchSpace(given, base).space()
    maker = RecipeMaker(base)
    chosen = random.Random(0).sample(list(itertools.islice(built.assignments(), 40_000)), 120)
    outcomes = [_outcome(maker, nested(assignment)) for assignment in chosen]
    assert outcomes == [
        _outcome(lambda config: translate(applied(base, config)).recipe, nested(assignment)) for assignment in chosen
    ]
    assert sum(not isinstance(outcome, str) for outcome in outcomes) > 10


def _outcome(make: Callable[[dict], Recipe], config: dict) -> Recipe | str:
    try:
        return make(config)
    except RecipeError as error:
        return str(error)


def test_configuration_does_not_change_the_starting_one() -> None:
    base = QuantizationConfig(extra_options={"FastFinetune": {"BatchSize": 2}})
    before = repr(base)
    config = applied(base, {"include_cle": False, "extra_options": {"FastFinetune": {"NumIterLR": [7, 0.5]}}})
    assert config.extra_options == {"FastFinetune": {"BatchSize": 2, "NumIterations": 7, "LearningRate": 0.5}}
    assert repr(base) == before


def test_ranges_are_spaces_too() -> None:
    given = {
        "calibrate_method": [PERCENTILE],
        "extra_options": {"Percentile": {"type": "float", "low": 99, "high": 99.9}},
    }
    built = SearchSpace(given)
    assert not built.is_finite
    with pytest.raises(RecipeError, match="values that can be listed"):
        built.get_all_configs()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"calibration_method": [1]}, "did you mean 'calibrate_method'"),
        ({"extra_options": {"Percentil": [1]}}, "did you mean 'Percentile'"),
        ({"extra_options": {"FastFinetune": {"NumIteration": [1]}}}, "did you mean 'NumIterations'"),
        ({"include_cle": True}, r"write \[True\]"),
        ({"include_cle": []}, "at least one value"),
        ({"extra_options": [1]}, "must be a dict"),
        ({"extra_options": {"Percentile": {"low": 1, "high": 2, "steps": 1}}}, "did you mean 'step'"),
        ({"extra_options": {"Percentile": {"low": 1, "high": 2, "type": "real"}}}, "'int' or 'float'"),
        ([1], "dict of lists"),
    ],
)
def test_mistakes_in_a_space_are_errors_before_any_work(given: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        SearchSpace(given)
