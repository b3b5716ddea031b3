"""`AutoSearchPro`: a search described by one dictionary, with conditional groups of parameters."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantry.autosearch import (
    Assignment,
    Parameter,
    SearchResult,
    Space,
    run_search,
    run_two_stage,
)
from quantry.errors import RecipeError, require_choice, require_known
from quantry.evaluate import find_metric
from quantry.files import write_file
from quantry.memo import fingerprint
from quantry.onnx.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    SmoothQuantConfig,
)
from quantry.onnx.auto_search.auto_search import Candidate, candidate, name_best
from quantry.onnx.auto_search.config import sampler_name, search_options
from quantry.onnx.auto_search.evaluators import SearchInputs, UserEvaluator, metric_name
from quantry.onnx.auto_search.predefined_spaces import PRESETS
from quantry.onnx.auto_search.search_space import parameter_of
from quantry.onnx.options import ROWS
from quantry.onnx.qconfig import QConfig
from quantry.onnx.specs import SPECS, QLayerConfig, QTensorConfig
from quantry.recipe import Recipe

# AMD Quark's default database; quantry's default is study.journal in output_dir.
_USUAL_DATABASE = "auto_search.db"
_DEFAULTS: dict[str, Any] = {
    "search_space": PRESETS["ADVANCED_SEARCH"]["search_space"],
    "n_trials": 20,
    "n_jobs": 1,
    "output_dir": "./output",
    "temp_dir": None,
    "search_algo": "TPE",
    "search_evaluator": None,
    "search_metric": "L2",
    "search_metric_tolerance": None,
    "direction": None,
    "two_stage_search": False,
    "model_input": None,
    "calib_data_reader": None,
    "eval_data_reader": None,
    "seed": 0,
    "study_storage_db": _USUAL_DATABASE,
}
# Options with only one supported value; others are rejected with the reason.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "load_study_if_exists": (
        (True,),
        "an existing search is always resumed; to start from scratch choose another output_dir",
    ),
    "study_name": ((None, "AutoSearch"), "a study is named by its content"),
    "plot_results": ((False,), "search.json in output_dir has all trials; `quantry.report` writes a report"),
    "base_framework": ((None, "onnx"), "models are ONNX"),
}

GROUPS = {
    "activation_params": "activation",
    "weight_params": "weight",
    "cle_params": "cle_algo",
    "adaround_params": "algorithms",
    "adaquant_params": "algorithms",
}
"""Groups of parameters, to the base key they belong to."""

_BASE = ("activation", "weight", "cle_algo", "algorithms")
_ALGORITHMS: Mapping[str, type[AlgoConfig]] = {
    "adaround": AdaRoundConfig,
    "adaquant": AdaQuantConfig,
    "gptq": GPTQConfig,
    "biascorrection": BiasCorrectionConfig,
    "smoothquant": SmoothQuantConfig,
}
_NONE = (None, False, "", "none", "None")
FINETUNING = ("algorithms", "adaround_params", "adaquant_params")
"""Keys of the second stage of a two-stage search."""


class AutoSearchPro:
    """Searches a space with conditions, described by one dictionary.

    Attributes:
        config: The given dictionary, with defaults filled in.
        result: The result of the last `run`, with all trials; None before.

    Raises:
        RecipeError: A key is unknown, or a value is invalid.

    Example:
        >>> config = get_auto_search_config("XINT8_SEARCH")
        >>> config |= {"model_input": "model.onnx", "calib_data_reader": reader, "n_trials": 8}  # doctest: +SKIP
        >>> AutoSearchPro(config).run()["model_path"]  # doctest: +SKIP
        'output/best.onnx'
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        require_known("AutoSearchPro", config, (*_DEFAULTS, *_FIXED), "be given known keys")
        for name, value in config.items():
            if name in _FIXED and value not in _FIXED[name][0]:
                raise RecipeError(f"AutoSearchPro's {name!r} cannot be {value!r}: {_FIXED[name][1]}")
        self.config = {**_DEFAULTS, **config}
        self.result: SearchResult | None = None
        self._parameters = pro_parameters(self.config["search_space"])
        self._check_direction()
        sampler_name(self.config["search_algo"], "AutoSearchPro's 'search_algo'")

    def run(self) -> Candidate:
        """Search.

        Returns:
            The best configuration as `quantry.onnx.auto_search.auto_search.candidate` describes it. Its parameters are
            also in ``best_params.json`` in the output directory, its model in ``best.onnx``.

        Raises:
            UserError: The model, the data or a setting is invalid.
        """
        if self.config["model_input"] is None:
            raise RecipeError("AutoSearchPro needs 'model_input', got none")
        sources = (self.config[name] for name in ("model_input", "calib_data_reader", "eval_data_reader", "output_dir"))
        inputs = SearchInputs.opened(*sources)
        options = search_options({**self.config, "study_storage_db": self._storage()})
        options = replace(options, keep_models="best")
        subjects = (inputs.model, inputs.calibration, self._evaluator(inputs))
        store = None if self.config["temp_dir"] is None else Path(self.config["temp_dir"]) / "store"
        first = {name: entry for name, entry in self._parameters.items() if name.partition(".")[0] not in FINETUNING}
        if not self.config["two_stage_search"] or len(first) == len(self._parameters):
            self.result = run_search(*subjects, self._space(self._parameters, {}), options, store)
            return self._best(self.result, {})
        calibration = self._space(first, {})
        calibrated: dict[str, Any] = {}

        def second(best: Recipe) -> Space:
            calibrated.update(
                next(assignment for assignment in calibration.assignments() if calibration.build(assignment) == best)
            )
            return self._space(_freed(self._parameters, first), calibrated)

        stages = run_two_stage(*subjects, (calibration, second), options, store)
        self.result = stages.best
        return self._best(self.result, calibrated if self.result is stages.finetuning else {})

    def _storage(self) -> str | None:
        """Return the URL of the database; the name of a file stands for one in the output directory."""
        name = self.config["study_storage_db"]
        if name is None or name == _USUAL_DATABASE:
            return None
        return str(name) if "://" in str(name) else f"sqlite:///{Path(self.config['output_dir']) / str(name)}"

    def _best(self, result: SearchResult, calibrated: Mapping[str, Any]) -> Candidate:
        if result.best is None:
            raise RecipeError(f"every configuration of AutoSearchPro failed: {'; '.join(result.notes)}")
        values = {**calibrated, **result.best.assignment}
        entry = candidate(result.best, result, None, values, self._metric)
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
        }
        path = Path(self.config["output_dir"]) / "best_params.json"
        write_file(path, json.dumps({"params": plain, "score": result.best.score}, indent=2))
        if result.best_model is not None:
            name_best(result.best_model, result)
        return entry | {"model_path": str(result.best_model)}

    def _space(self, parameters: Mapping[str, Any], fixed: Mapping[str, Any]) -> Space:
        return Space(parameters, ProBuild(dict(fixed)), name=f"AutoSearchPro {fingerprint(repr(dict(fixed))).short}")

    def _evaluator(self, inputs: SearchInputs) -> Any:
        function, direction = self.config["search_evaluator"], self.config["direction"]
        if function is None:
            return inputs.metric_evaluator(self.config["search_metric"])
        keywords = {"eval_data_reader": inputs.evaluation, "model_input": str(inputs.model)}
        return UserEvaluator(function, keywords, direction)

    @property
    def _metric(self) -> str:
        return metric_name(self.config["search_evaluator"], str(self.config["search_metric"]))

    def _check_direction(self) -> None:
        direction = self.config["direction"]
        metric = find_metric(self.config["search_metric"])
        expected = "maximize" if metric.higher_is_better else "minimize"
        if direction not in (None, "maximize", "minimize"):
            raise RecipeError(f"AutoSearchPro's 'direction' must be 'maximize' or 'minimize', got {direction!r}")
        if self.config["search_evaluator"] is None and direction not in (None, expected):
            raise RecipeError(f"AutoSearchPro's 'direction' must be {expected!r} for {metric.name}, got {direction!r}")


def get_auto_search_config(config_name: str) -> dict[str, Any]:
    """Return a copy of a named configuration for `AutoSearchPro`; add the model and the data.

    Args:
        config_name: XINT8_SEARCH, A8W8_SEARCH, A16W8_SEARCH or ADVANCED_SEARCH.

    Raises:
        RecipeError: There is no such name; the message has the nearest.
    """
    require_choice("the argument of get_auto_search_config", config_name, PRESETS)
    return copy.deepcopy(PRESETS[config_name])


def _freed(parameters: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the second stage, without conditions on those of the first."""
    return {
        name: replace(entry, only_if={key: value for key, value in entry.only_if.items() if key not in first})
        for name, entry in parameters.items()
        if name not in first
    }


def pro_parameters(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a space, groups under dotted names such as ``adaround_params.learning_rate``.

    Raises:
        RecipeError: A key is unknown, or a leaf is neither a list nor a range.
    """
    require_known("search_space", space, (*_BASE, *GROUPS, *ROWS))
    base: dict[str, Parameter] = {}
    groups: dict[str, Parameter] = {}
    for name, values in space.items():
        if name in GROUPS:
            groups |= _group(name, values, space)
        else:
            base[name] = _leaf(values, name, {})
    return base | groups


def _group(name: str, values: Any, space: Mapping[str, Any]) -> dict[str, Parameter]:
    if not isinstance(values, Mapping):
        raise RecipeError(f"search_space[{name!r}] must be a dict of lists, got {type(values).__name__}")
    conditions = _conditions(name, values.get("only_if"), space)
    return {
        f"{name}.{key}": _leaf(value, f"{name}.{key}", conditions) for key, value in values.items() if key != "only_if"
    }


def _conditions(name: str, only_if: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions of a group: a base key must be on, or have the values given in a dict."""
    if only_if is None:
        only_if = {"algorithms": name.removesuffix("_params")} if GROUPS[name] == "algorithms" else GROUPS[name]
    if isinstance(only_if, str):
        values = space.get(only_if)
        if not isinstance(values, list | tuple):
            if only_if in _BASE:
                return {}
            raise RecipeError(f"only_if of {name!r} must name a key of the space, got {only_if!r}")
        on = [value for value in values if value not in _NONE]
        return {only_if: on} if len(on) < len(values) else {}
    if not isinstance(only_if, Mapping):
        raise RecipeError(f"only_if of {name!r} must be a key or a dict of keys to values, got {only_if!r}")
    for key, allowed in only_if.items():
        if key not in space:
            raise RecipeError(f"only_if of {name!r} must name keys of the space, got {key!r}; {allowed!r}")
    return dict(only_if)


def _leaf(value: Any, name: str, only_if: Mapping[str, Any]) -> Parameter:
    return replace(parameter_of(value, f"search_space[{name!r}]"), only_if=only_if)


@dataclass(frozen=True)
class ProBuild:
    """Builds recipes from assignments, by way of a QConfig.

    Attributes:
        fixed: Values that all configurations share.
    """

    fixed: Mapping[str, Any]

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe.

        Raises:
            RecipeError: The values are an invalid or unsupported combination.
        """
        return self.config({**self.fixed, **assignment}).to_job().recipe

    def config(self, values: Mapping[str, Any]) -> QConfig:
        """Return the values as a QConfig."""
        layer = QLayerConfig(
            activation=_spec(values.get("activation", "Int8"), values, "activation"),
            weight=_spec(values.get("weight", "Int8"), values, "weight"),
        )
        algorithms: list[AlgoConfig] = []
        if values.get("cle_algo") not in _NONE:
            algorithms.append(CLEConfig(**_inside(values, "cle_params")))
        value = values.get("algorithms")
        listed = value if isinstance(value, list | tuple) else [value]
        names = tuple(str(name).lower() for name in listed if name not in _NONE)
        require_known("algorithms", names, _ALGORITHMS, f"be among {', '.join(_ALGORITHMS)} or None")
        algorithms += [_ALGORITHMS[name](**_inside(values, f"{name}_params")) for name in names]
        options = {name: value for name, value in values.items() if name in ROWS}
        return QConfig(layer, algo_config=algorithms, **options)


def _spec(name: Any, values: Mapping[str, Any], which: str) -> QTensorConfig:
    settings = _inside(values, f"{which}_params")
    if isinstance(name, QTensorConfig):
        return type(name)(**{**vars(name), **settings})
    short = str(name).removesuffix("Spec")
    require_choice(which, short, (entry.removesuffix("Spec") for entry in SPECS))
    return SPECS[f"{short}Spec"](**settings)


def _inside(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{group}.")}
