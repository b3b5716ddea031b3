"""AutoSearchPro: dictionaries with conditions and ranges."""

import json
from pathlib import Path
from typing import Any

import pytest
from search_models import Reader, saved_net

from quantry.autosearch import Space
from quantry.errors import RecipeError
from quantry.onnx import CalibMethod
from quantry.onnx.auto_search import AutoSearchPro, get_auto_search_config
from quantry.onnx.auto_search.predefined_spaces import PRESETS
from quantry.onnx.auto_search.pro import ProBuild, pro_parameters
from quantry.recipe import AdaQuant, AdaRound


def small(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "search_space": {
            "activation": ["Int8", "Int16"],
            "weight": ["Int8"],
            "cle_algo": [True, None],
            "cle_params": {"only_if": "cle_algo", "cle_steps": [1, 2]},
            "algorithms": [None, "adaround"],
            "adaround_params": {
                "num_iterations": {"type": "int", "low": 1, "high": 3},
                "learning_rate": {"type": "float", "low": 0.01, "high": 0.1, "log": True},
            },
        },
        "n_trials": 4,
        "output_dir": str(tmp_path / "out"),
        "model_input": saved_net(tmp_path),
        "calib_data_reader": Reader(),
        **changes,
    }


def test_groups_exist_only_if_their_key_is_on() -> None:
    given = {
        "cle_algo": [True, None],
        "cle_params": {"only_if": "cle_algo", "cle_steps": [1, 2]},
        "algorithms": [None, "adaround", "adaquant"],
        "adaround_params": {"only_if": {"algorithms": "adaround"}, "num_iterations": [5]},
        "adaquant_params": {"learning_rate": [1e-5, 1e-6]},
    }
    space = Space(pro_parameters(given), ProBuild({}))
    assert len(list(space.assignments())) == (2 + 1) * (1 + 1 + 2)
    steps = {space.build(assignment).tune.steps for assignment in space.assignments()}
    kinds = {type(step[0]) if step else None for step in steps}
    assert kinds == {None, AdaRound, AdaQuant}


def test_parameters_of_tensors_reach_the_recipe() -> None:
    given = {"activation": ["UInt8"], "activation_params": {"calibration_method": [CalibMethod.MinMax]}}
    space = Space(pro_parameters(given), ProBuild({}))
    (assignment,) = space.assignments()
    recipe = space.build(assignment)
    assert recipe.plan.activation.dtype.value == "uint8"
    assert type(recipe.scale.activation).__name__ == "MinMax"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_returned_as_copies(name: str) -> None:
    config = get_auto_search_config(name)
    assert config == PRESETS[name]
    config["search_space"]["activation"].append("Int16")
    assert get_auto_search_config(name) == PRESETS[name]
    search = AutoSearchPro(get_auto_search_config(name))
    first = {key: entry for key, entry in search._parameters.items() if "ada" not in key and key != "algorithms"}
    recipes = [ProBuild({})(assignment) for assignment in Space(first, ProBuild({})).assignments()]
    assert len(recipes) >= 3


@pytest.mark.parametrize("staged", [False, True])
def test_search_writes_the_best_parameters(tmp_path: Path, staged: bool) -> None:
    search = AutoSearchPro(small(tmp_path, two_stage_search=staged))
    best = search.run()
    assert best["configuration"]["activation"] in ("Int8", "Int16")
    assert Path(best["model_path"]).exists()
    plain = json.loads((tmp_path / "out" / "best_params.json").read_text())
    assert plain["score"] == best["metrics"]["score"]
    assert plain["params"]["activation"] == best["configuration"]["activation"]
    if staged:
        assert best["configuration"]["activation"] == "Int16"
        assert {path.name for path in (tmp_path / "out").iterdir()} >= {"calibration", "finetuning"}


def test_direction_of_an_evaluator_can_be_given(tmp_path: Path) -> None:
    sizes: list[int] = []

    def size(path: str) -> float:
        sizes.append(Path(path).stat().st_size)
        return float(sizes[-1])

    space = {"activation": ["Int8", "Int16"], "weight": ["Int8", "Int16"]}
    given = small(tmp_path, search_space=space, search_evaluator=size, direction="minimize", search_algo="Grid")
    assert AutoSearchPro(given).run()["configuration"]["weight"] == "Int8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_trial": 3}, "did you mean 'n_trials'"),
        ({"direction": "up"}, "'maximize' or 'minimize'"),
        ({"direction": "maximize"}, "must be 'minimize' for l2"),
        ({"search_algo": "TPS"}, "must be one of"),
        ({"plot_results": True}, "search.json"),
        ({"search_space": {"activaton": ["Int8"]}}, "did you mean 'activation'"),
        ({"search_space": {"cle_params": [1]}}, "dict of lists"),
        ({"search_space": {"activation": "Int8"}}, "list or a range"),
        ({"search_space": {"algorithms": ["adaround"], "adaround_params": {"only_if": "algo"}}}, "name a key"),
    ],
)
def test_mistakes_are_errors_at_once(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        AutoSearchPro(small(tmp_path, **changes))
    with pytest.raises(RecipeError, match="did you mean 'XINT8_SEARCH'"):
        get_auto_search_config("XINT8_SERCH")


def test_study_can_be_in_a_database(tmp_path: Path) -> None:
    AutoSearchPro(small(tmp_path, study_storage_db="other.db")).run()
    output = Path(small(tmp_path)["output_dir"])
    assert (output / "other.db").exists()
    assert not (output / "study.journal").exists()


def test_unknown_names_in_a_space_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'Int8'"):
        ProBuild({})({"activation": "Int9"})
    with pytest.raises(RecipeError, match="did you mean 'adaround'"):
        ProBuild({})({"algorithms": "adaroun"})
