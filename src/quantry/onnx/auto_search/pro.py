"""The search that is described by one dictionary."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantry.autosearch import (
    SearchOptions,
    SearchResult,
    Space,
    StopConditions,
    run_search,
    run_two_stage,
)
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate import find_metric
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.memo import fingerprint
from quantry.onnx.auto_search.candidates import Candidate, candidate
from quantry.onnx.auto_search.evaluators import UserEvaluator, metric_evaluator
from quantry.onnx.auto_search.pro_presets import PRESETS
from quantry.onnx.auto_search.pro_space import FINETUNING, ProBuild, pro_parameters
from quantry.onnx.auto_search.settings import algorithm
from quantry.recipe import Recipe

# AMD Quark's name for the study that is always there; ours is study.journal in output_dir.
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
# Of these there is one way here; the value beside asks for it, and others are refused with the reason.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "load_study_if_exists": ((True,), "a search always goes on; to begin anew choose another output_dir"),
    "study_name": ((None, "AutoSearch"), "a search is named by its content"),
    "plot_results": ((False,), "search.json in output_dir has every trial; `quantry.report` draws a search"),
    "base_framework": ((None, "onnx"), "models are ONNX"),
}


class AutoSearchPro:
    """Searches a space with conditions, described by one dictionary.

    Attributes:
        config: What was given.
        result: What the last `run` found, every trial included; None before.

    Raises:
        RecipeError: A key is unknown, or a value cannot be used.

    Example:
        >>> config = get_auto_search_config("XINT8_SEARCH")
        >>> config |= {"model_input": "model.onnx", "calib_data_reader": reader, "n_trials": 8}  # doctest: +SKIP
        >>> AutoSearchPro(config).run()["model_path"]  # doctest: +SKIP
        'output/best.onnx'
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        known = (*_DEFAULTS, *_FIXED)
        for name, value in config.items():
            if name not in known:
                raise RecipeError(
                    f"AutoSearchPro must be given known keys, got {name!r}{nearest_spelling(name, known)}"
                )
            if name in _FIXED and value not in _FIXED[name][0]:
                raise RecipeError(f"AutoSearchPro's {name!r} cannot be {value!r}: {_FIXED[name][1]}")
        self.config = {**_DEFAULTS, **config}
        self.result: SearchResult | None = None
        self._parameters = pro_parameters(self.config["search_space"])
        self._check_direction()
        algorithm(self.config["search_algo"], "AutoSearchPro's 'search_algo'")

    def run(self) -> Candidate:
        """Search.

        Returns:
            The best configuration as `quantry.onnx.auto_search.candidates.candidate` describes it; its parameters are
            also ``best_params.json`` in the output directory, and its model ``best.onnx``.

        Raises:
            UserError: Model, data or settings cannot be used.
        """
        model, data, evaluation = self._subjects()
        options = SearchOptions(
            sampler=algorithm(self.config["search_algo"], "search_algo"),
            tolerance=self.config["search_metric_tolerance"],
            stop=StopConditions(iterations=self.config["n_trials"]),
            n_jobs=self.config["n_jobs"],
            seed=self.config["seed"],
            output_dir=Path(self.config["output_dir"]),
            keep_models="best",
            storage=self._storage(),
        )
        evaluator = self._evaluator(model, evaluation)
        store = None if self.config["temp_dir"] is None else Path(self.config["temp_dir"]) / "store"
        first = {name: entry for name, entry in self._parameters.items() if name.partition(".")[0] not in FINETUNING}
        if not self.config["two_stage_search"] or len(first) == len(self._parameters):
            self.result = run_search(model, data, evaluator, self._space(self._parameters, {}), options, store)
            return self._best(self.result, {})
        calibration = self._space(first, {})
        chosen: dict[str, Any] = {}

        def second(best: Recipe) -> Space:
            chosen.update(next(found for found in calibration.assignments() if calibration.build(found) == best))
            return self._space(_freed(self._parameters, first), chosen)

        stages = run_two_stage(model, data, evaluator, (calibration, second), options, store)
        self.result = stages.best
        return self._best(self.result, chosen if self.result is stages.finetuning else {})

    def _storage(self) -> str | None:
        """Return the database of the study: a URL as it is, or a file in the output directory."""
        name = self.config["study_storage_db"]
        if name is None or name == _USUAL_DATABASE:
            return None
        return str(name) if "://" in str(name) else f"sqlite:///{Path(self.config['output_dir']) / str(name)}"

    def _best(self, result: SearchResult, chosen: Mapping[str, Any]) -> Candidate:
        if result.best is None:
            raise RecipeError(f"AutoSearchPro found no configuration that works: {'; '.join(result.notes)}")
        values = {**chosen, **result.best.assignment}
        found = candidate(result.best, result, None, values, self._metric)
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
        }
        path = Path(self.config["output_dir"]) / "best_params.json"
        path.write_text(json.dumps({"params": plain, "score": result.best.score}, indent=2), encoding="utf-8")
        return found | {"model_path": str(result.best_model)}

    def _space(self, parameters: Mapping[str, Any], fixed: Mapping[str, Any]) -> Space:
        return Space(parameters, ProBuild(dict(fixed)), name=f"AutoSearchPro {fingerprint(repr(dict(fixed))).short}")

    def _subjects(self) -> tuple[Path, CalibrationData, CalibrationData]:
        model = self.config["model_input"]
        if model is None:
            raise RecipeError("AutoSearchPro needs 'model_input', got none")
        source = model_source(model)
        path = Path(self.config["output_dir"]) / "float.onnx" if not isinstance(model, str | Path) else Path(model)
        if not isinstance(model, str | Path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model(source.load(), path)
        inputs = input_signatures(source.load())
        data = calibration_data(self.config["calib_data_reader"], inputs)
        given = self.config["eval_data_reader"]
        return path, data, data if given is None else calibration_data(given, inputs)

    def _evaluator(self, model: Path, evaluation: CalibrationData) -> Any:
        function = self.config["search_evaluator"]
        if function is None:
            return metric_evaluator(model, evaluation, self.config["search_metric"])
        made = UserEvaluator(function, {"eval_data_reader": evaluation, "model_input": str(model)})
        return made if self.config["direction"] is None else replace(made, towards=self.config["direction"])

    @property
    def _metric(self) -> str:
        function = self.config["search_evaluator"]
        return str(self.config["search_metric"]) if function is None else getattr(function, "__name__", "evaluator")

    def _check_direction(self) -> None:
        direction = self.config["direction"]
        metric = find_metric(self.config["search_metric"])
        own = "maximize" if metric.higher_is_better else "minimize"
        if direction not in (None, "maximize", "minimize"):
            raise RecipeError(f"AutoSearchPro's 'direction' must be 'maximize' or 'minimize', got {direction!r}")
        if self.config["search_evaluator"] is None and direction not in (None, own):
            raise RecipeError(f"AutoSearchPro's 'direction' must be {own!r} for {metric.name}, got {direction!r}")


def get_auto_search_config(name: str) -> dict[str, Any]:
    """Return a copy of a named configuration for `AutoSearchPro`; model and data are to be added.

    Args:
        name: XINT8_SEARCH, A8W8_SEARCH, A16W8_SEARCH or ADVANCED_SEARCH.

    Raises:
        RecipeError: There is no such name; the message has the nearest.
    """
    import copy

    if name not in PRESETS:
        raise RecipeError(
            f"get_auto_search_config must be given one of {', '.join(PRESETS)}, got {name!r}"
            f"{nearest_spelling(str(name), PRESETS)}"
        )
    return copy.deepcopy(PRESETS[name])


def _freed(parameters: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the second stage, without conditions on those of the first."""
    return {
        name: replace(entry, only_if={key: value for key, value in entry.only_if.items() if key not in first})
        for name, entry in parameters.items()
        if name not in first
    }
