"""`AutoSearch`: the search under AMD Quark's name, and the candidates it returns."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import onnx

from quantry.autosearch import SearchOptions, SearchResult, Space, Trial, run_search
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.errors import DataError, RecipeError, nearest_spelling
from quantry.files import read_regular, write_file
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source, read_model
from quantry.graph.save import write_model
from quantry.onnx.auto_search.config import Settings, device_names
from quantry.onnx.auto_search.configuration import (
    INDEX,
    Configuration,
    RecipeMaker,
    calibration_stage,
    finetuning_stage,
    has_both_stages,
    index_of,
    list_space,
    nested,
    starting_config,
)
from quantry.onnx.auto_search.evaluators import metric_evaluator, user_evaluator
from quantry.onnx.auto_search.search_space import SearchSpace, finetune_space

_LOG = logging.getLogger("quantry")

Candidate = dict[str, Any]

_NEW_ORDER = (
    *("model_input", "config", "auto_search_config", "eval_dataloader", "calibration_data_reader"),
    "calibration_data_path",
)
_OLD_ORDER = ("config", "auto_search_config", "model_input", "calibration_data_reader", "calibration_data_path")
_OTHER_NAMES = {
    "quantization_config": "config",
    "quant_config": "config",
    "float_onnx_model_path": "model_input",
    "input_model_path": "model_input",
    "model": "model_input",
    "data_reader": "calibration_data_reader",
    "calib_data_reader": "calibration_data_reader",
    "eval_data_reader": "eval_dataloader",
}


class AutoSearch:
    """Searches for the configuration whose quantized model is closest to the float model.

    Both orders of arguments are accepted: ``AutoSearch(config, auto_search_config, model_input,
    calibration_data_reader)`` as in the documents, and ``AutoSearch(model_input, config, auto_search_config,
    eval_dataloader, calibration_data_reader, calibration_data_path)`` as in AMD Quark 0.13; all may be keywords. The
    configurations are only read.

    Attributes:
        config: The starting quantization configuration.
        auto_search_config: The search configuration as given.
        settings: The search configuration with defaults filled in.
        model_input: The float model.
        result: The result of the last `search_model`, with all trials; None before. For a two-stage search, that of
            the stage with the best model.
        stages: The results of both stages of a two-stage search; otherwise empty.

    Raises:
        RecipeError: An argument or a setting is invalid.

    Example:
        >>> search = AutoSearch(config, AutoSearchConfig, "model.onnx", reader)  # doctest: +SKIP
        >>> search.search_model()[0]["model_path"]  # doctest: +SKIP
        'iter_3.onnx'
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        given = _search_arguments(arguments, keywords)
        self.model_input = given["model_input"]
        self.config = given["config"]
        self.auto_search_config = given["auto_search_config"]
        self.eval_dataloader = given["eval_dataloader"]
        self.calibration_data_reader = given["calibration_data_reader"]
        self.calibration_data_path = given["calibration_data_path"]
        self.settings = Settings.of(self.auto_search_config)
        self.result: SearchResult | None = None
        self.stages: tuple[SearchResult, ...] = ()
        self._maker = RecipeMaker(starting_config(self.config))
        if "FixShapes" in (self._maker.base.extra_options or {}):
            # It changes the model before quantization, but the evaluator is given the model file as it is.
            raise RecipeError(
                "extra_options['FixShapes'] cannot be used in a search, whose evaluator is given the float model as it "
                "is; write a model with those shapes first"
            )
        self._assigned: list[Mapping[str, Any]] | None = None
        self._built: list[Configuration] | None = None

    @property
    def all_configs(self) -> list[Mapping[str, Any]]:
        """The configurations to try: those of ``search_space``, or an assigned list, whose order is kept."""
        if self._assigned is not None:
            return self._assigned
        if self._built is None:
            self._built = self._search_space.get_all_configs()
        return list(self._built)

    @all_configs.setter
    def all_configs(self, configurations: Sequence[Mapping[str, Any]]) -> None:
        self._assigned = list(configurations)

    def build_all_configs(self, search_space: Mapping[str, Any]) -> list[Configuration]:
        """Return the valid configurations of a space without duplicates; the log has the reasons for the others.

        Args:
            search_space: Nested dictionary of lists.

        Returns:
            Nested dictionaries; lists of several spaces can be concatenated and assigned to `all_configs`.
        """
        return SearchSpace(search_space, self._maker.base).get_all_configs()

    def search_model(self) -> list[Candidate]:
        """Search, and return the candidates.

        Returns:
            The configurations within tolerance in the order they were tried, each as `candidate` describes. If there
            is none, the best one, with ``within_tolerance`` False and a warning. Its model is also ``best.onnx`` in the
            output directory, with its ``recipe.yaml``. A search of finetuning parameters returns the best first, a
            two-stage search only the best.

        Raises:
            UserError: The model, the data or a setting is invalid.
        """
        found = self._searched()
        if self.result is not None and self.result.best_model is not None:
            name_best(Path(self.settings.search_output_dir) / "best.onnx", self.result)
        return found

    def _searched(self) -> list[Candidate]:
        if self.settings.advanced_fastft_search:
            return self._search_finetuning()
        if self.settings.two_stage_search:
            if has_both_stages(self.all_configs, self._maker.base):
                return self._search_in_stages()
            _LOG.warning(
                "two_stage_search needs configurations with calibration options and with FastFinetune, and "
                "include_fast_ft=True in at least one; the space lacks one of them, so a normal search is run"
            )
        space = self._search_space.space() if self._assigned is None else list_space(self._maker, self._assigned)
        return candidates(self._run(space, self.settings.options()), self._describe, self._metric)

    @cached_property
    def _search_space(self) -> SearchSpace:
        return SearchSpace(self.settings.search_space, self._maker.base)

    def _run(self, space: Space, options: SearchOptions) -> SearchResult:
        data, evaluation = self._data()
        options.output_dir.mkdir(parents=True, exist_ok=True)
        evaluator = self._evaluator(data, evaluation)
        # One store for both stages of a two-stage search.
        cache = self.settings.search_cache_dir
        store = Path(self.settings.search_output_dir if cache is None else cache) / "store"
        self.result = run_search(self._model_path(), data, evaluator, space, options, store)
        return self.result

    def _evaluator(self, calibration: CalibrationData, evaluation: CalibrationData) -> Any:
        function = self.settings.search_evaluator
        if function is None:
            return metric_evaluator(self._model_path(), evaluation, self.settings.search_metric)
        offered = {
            "model_input": str(self._model_path()),
            "config": self.config,
            "auto_search_config": self.auto_search_config,
            "eval_dataloader": evaluation,
            "calibration_data_reader": calibration,
            "cache_dir": self.settings.search_cache_dir,
            "output_dir": str(self.settings.search_output_dir),
        }
        return user_evaluator(function, offered)

    @property
    def _metric(self) -> str:
        function = self.settings.search_evaluator
        return self.settings.search_metric if function is None else getattr(function, "__name__", "evaluator")

    def _data(self) -> tuple[CalibrationData, CalibrationData]:
        """Return calibration and evaluation data; they are opened once, because a reader can only be read once."""
        reader, path = self.calibration_data_reader, self.calibration_data_path
        if reader is not None and path is not None:
            raise DataError("calibration data must come from one source, got calibration_data_reader and _path")
        if not hasattr(self, "_opened"):
            inputs = input_signatures(model_source(self.model_input).load())
            calibration = calibration_data(reader if path is None else path, inputs)
            given = self.eval_dataloader
            self._opened = (calibration, calibration if given is None else calibration_data(given, inputs))
        return self._opened

    def _model_path(self) -> Path:
        if isinstance(self.model_input, str | Path):
            return Path(self.model_input)
        path = Path(self.settings.search_output_dir) / "float.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_model(model_source(self.model_input).load(), path)
        return path

    def _describe(self, trial: Trial) -> tuple[int | None, Mapping[str, Any]]:
        if INDEX in trial.assignment:
            index = index_of(trial.assignment)
            return index, self.all_configs[index]
        configuration = nested(trial.assignment)
        if not self._search_space.is_finite:
            return None, configuration
        return self._search_space.place_of(trial.recipe), configuration

    def _search_in_stages(self) -> list[Candidate]:
        """Search calibration without finetuning, then finetuning of the best calibration, both without limits."""
        output = Path(self.settings.search_output_dir)
        options = replace(self.settings.options().without_limits(), sampler="grid", racing=False)
        everything = self.all_configs
        first = calibration_stage(everything)
        calibrated = self._run(
            list_space(self._maker, first, "calibration"),
            replace(options, output_dir=output / "calibration"),
        )
        if calibrated.best is None:
            raise RecipeError(f"every calibration of two_stage_search failed: {'; '.join(calibrated.notes)}")
        second = finetuning_stage(first[index_of(calibrated.best.assignment)], everything)
        tuned = self._run(
            list_space(self._maker, second, "finetuning"),
            replace(options, output_dir=output / "finetuning"),
        )
        self.stages = (calibrated, tuned)
        result, configurations = self._better((calibrated, first), (tuned, second))
        self.result = result
        assert result.best is not None
        index = index_of(result.best.assignment)
        found = candidate(result.best, result, index, configurations[index], self._metric)
        assert result.best_model is not None
        write_model(read_model(result.best_model), output / "best.onnx")
        write_file(output / "recipe.yaml", read_regular(result.output_dir / "recipe.yaml"))
        return [found | {"model_path": str(output / "best.onnx"), "stage": result.output_dir.name}]

    @staticmethod
    def _better(*stages: tuple[SearchResult, list[Configuration]]) -> tuple[SearchResult, list[Configuration]]:
        """Return the stage with the best model; the first if finetuning did not help."""
        drops = [inf if result.best is None else (result.best.drop or 0.0) for result, _ in stages]
        return stages[drops.index(min(drops))]

    def _search_finetuning(self) -> list[Candidate]:
        """Search iterations and learning rate of finetuning as numbers, in one study."""
        if self._assigned is not None:
            raise RecipeError("advanced_fastft_search takes only search_space, but all_configs was assigned")
        # Every worker sees only its own device, which is the first one there.
        device = "cuda:0" if device_names(self.settings.search_devices) else None
        every = self.settings.advanced_fastft_params.get("checkpoint_every")
        space = finetune_space(self.settings.search_space, self._maker, device, every)
        result = self._run(space, self.settings.advanced_options())
        found = candidates(result, lambda trial: (None, nested(trial.assignment)), self._metric)
        return sorted(found, key=lambda entry: float(entry["difference"]))


def name_best(path: Path, result: SearchResult) -> None:
    """Print which model a search found."""
    best = result.best
    difference = "" if best is None or best.drop is None else f", {best.drop:.6g} worse than the float model"
    sys.stdout.write(f"best model: {path}{difference}; everything of the search is in {path.parent}\n")


def candidate(
    trial: Trial, result: SearchResult, index: int | None, configuration: Mapping[str, Any], metric: str
) -> Candidate:
    """Return a trial as the dictionary that AMD Quark returns, with some additions.

    Args:
        trial: The trial.
        result: The search it is from.
        index: Its index in ``all_configs``; None if it is from a range.
        configuration: Its configuration.
        metric: Name of the score.

    Returns:
        ``config_index``, ``difference`` (how much worse than the float model, in the unit of the score) and
        ``model_path`` as in AMD Quark; and ``within_tolerance``, ``configuration``, ``recipe``, ``metrics`` and
        ``timings``.
    """
    return {
        "config_index": trial.number if index is None else index,
        "difference": trial.drop,
        "model_path": None if trial.model_path is None else str(trial.model_path),
        "within_tolerance": trial.accepted,
        "configuration": configuration,
        "recipe": trial.recipe,
        "metrics": {
            "metric": metric,
            "score": trial.score,
            "interval": trial.interval,
            "float_score": result.reference.value,
            **{name: value for name, value in trial.objectives.items() if name != "accuracy"},
        },
        "timings": {"seconds": trial.seconds, "computed": dict(trial.computed), "reused": list(trial.reused)},
    }


def candidates(
    result: SearchResult, describe: Callable[[Trial], tuple[int | None, Mapping[str, Any]]], metric: str
) -> list[Candidate]:
    """Return the trials within tolerance in the order they were tried; if there is none, the best one.

    Args:
        result: The search.
        describe: Returns index and configuration of a trial.
        metric: Name of the score.
    """
    if result.candidates or result.best is None:
        return [candidate(trial, result, *describe(trial), metric) for trial in result.candidates]
    _LOG.warning("%s; it is returned anyway", result.notes[-1])
    return [candidate(result.best, result, *describe(result.best), metric)]


def _search_arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of AutoSearch under the names of AMD Quark 0.13.

    If the first argument is a model, the order is that of 0.13, otherwise that of the documents.

    Raises:
        RecipeError: There are too many, one is unknown or given twice, or the model or the configuration is missing.
    """
    is_model = bool(positional) and isinstance(positional[0], str | os.PathLike | onnx.ModelProto)
    order = _NEW_ORDER if is_model else _OLD_ORDER
    if len(positional) > len(order):
        raise RecipeError(f"AutoSearch takes {len(order)} arguments ({', '.join(order)}), got {len(positional)}")
    given = dict(zip(order, positional, strict=False))
    for name, value in keywords.items():
        meant = _OTHER_NAMES.get(name, name)
        if meant not in _NEW_ORDER:
            raise RecipeError(
                f"AutoSearch must be given known arguments, got {name!r}"
                f"{nearest_spelling(name, (*_NEW_ORDER, *_OTHER_NAMES))}"
            )
        if meant in given:
            raise RecipeError(f"AutoSearch must be given {meant!r} once, got it twice")
        given[meant] = value
    for name in ("model_input", "config"):
        if given.get(name) is None:
            raise RecipeError(f"AutoSearch needs {name!r}, got none; in {sorted(given)}")
    return {name: given.get(name) for name in _NEW_ORDER}
