"""`AutoSearch`: the search under AMD Quark's name, and the candidates it returns."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from quantry.autosearch import SearchOptions, SearchResult, Space, Trial, run_search, run_two_stage
from quantry.errors import DataError, RecipeError, nearest_spelling
from quantry.files import read_regular, write_file
from quantry.graph.load import read_model
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
from quantry.onnx.auto_search.evaluators import SearchInputs, UserEvaluator, metric_name
from quantry.onnx.auto_search.search_space import SearchSpace, finetune_space
from quantry.recipe import Recipe

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
        values = _search_arguments(arguments, keywords)
        self.model_input = values["model_input"]
        self.config = values["config"]
        self.auto_search_config = values["auto_search_config"]
        self.eval_dataloader = values["eval_dataloader"]
        self.calibration_data_reader = values["calibration_data_reader"]
        self.calibration_data_path = values["calibration_data_path"]
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
        entries = self._searched()
        if self.result is not None and self.result.best_model is not None:
            name_best(Path(self.settings.search_output_dir) / "best.onnx", self.result)
        return entries

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
        options.output_dir.mkdir(parents=True, exist_ok=True)
        inputs = self._inputs
        self.result = run_search(inputs.model, inputs.calibration, self._evaluator(), space, options, self._store)
        return self.result

    @property
    def _store(self) -> Path:
        cache = self.settings.search_cache_dir
        return Path(self.settings.search_output_dir if cache is None else cache) / "store"

    @cached_property
    def _inputs(self) -> SearchInputs:
        reader, path = self.calibration_data_reader, self.calibration_data_path
        if reader is not None and path is not None:
            raise DataError("calibration data must come from one source, got calibration_data_reader and _path")
        data = reader if path is None else path
        return SearchInputs.opened(self.model_input, data, self.eval_dataloader, self.settings.search_output_dir)

    def _evaluator(self) -> Any:
        function, inputs = self.settings.search_evaluator, self._inputs
        if function is None:
            return inputs.metric_evaluator(self.settings.search_metric)
        if hasattr(function, "fingerprint") and hasattr(function, "direction"):
            return function  # an evaluator already, such as ours
        keywords = {
            "model_input": str(inputs.model),
            "config": self.config,
            "auto_search_config": self.auto_search_config,
            "eval_dataloader": inputs.evaluation,
            "calibration_data_reader": inputs.calibration,
            "cache_dir": self.settings.search_cache_dir,
            "output_dir": str(self.settings.search_output_dir),
        }
        return UserEvaluator(function, keywords)

    @property
    def _metric(self) -> str:
        return metric_name(self.settings.search_evaluator, self.settings.search_metric)

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
        first = calibration_stage(self.all_configs)
        second: list[Configuration] = []

        def finetuning(best: Recipe) -> Space:
            configuration = next(entry for entry in first if self._maker(entry) == best)
            second.extend(finetuning_stage(configuration, self.all_configs))
            return list_space(self._maker, second, "finetuning")

        inputs, calibration = self._inputs, list_space(self._maker, first, "calibration")
        stages = run_two_stage(
            inputs.model, inputs.calibration, self._evaluator(), (calibration, finetuning), options, self._store
        )
        self.stages = (stages.calibration, stages.finetuning)
        self.result = result = stages.best
        assert result.best is not None
        assert result.best_model is not None
        index = index_of(result.best.assignment)
        configurations = first if result is stages.calibration else second
        write_model(read_model(result.best_model), output / "best.onnx")
        write_file(output / "recipe.yaml", read_regular(result.output_dir / "recipe.yaml"))
        entry = candidate(result.best, result, index, configurations[index], self._metric)
        return [entry | {"model_path": str(output / "best.onnx"), "stage": result.output_dir.name}]

    def _search_finetuning(self) -> list[Candidate]:
        """Search iterations and learning rate of finetuning as numbers, in one study."""
        if self._assigned is not None:
            raise RecipeError("advanced_fastft_search takes only search_space, but all_configs was assigned")
        # Every worker sees only its own device, which is the first one there.
        device = "cuda:0" if device_names(self.settings.search_devices) else None
        every = self.settings.advanced_fastft_params.get("checkpoint_every")
        space = finetune_space(self.settings.search_space, self._maker, device, every)
        result = self._run(space, self.settings.advanced_options())
        entries = candidates(result, lambda trial: (None, nested(trial.assignment)), self._metric)
        return sorted(entries, key=lambda entry: float(entry["difference"]))


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
    values = dict(zip(order, positional, strict=False))
    for name, value in keywords.items():
        meant = _OTHER_NAMES.get(name, name)
        if meant not in _NEW_ORDER:
            raise RecipeError(
                f"AutoSearch must be given known arguments, got {name!r}"
                f"{nearest_spelling(name, (*_NEW_ORDER, *_OTHER_NAMES))}"
            )
        if meant in values:
            raise RecipeError(f"AutoSearch must be given {meant!r} once, got it twice")
        values[meant] = value
    for name in ("model_input", "config"):
        if values.get(name) is None:
            raise RecipeError(f"AutoSearch needs {name!r}, got none; in {sorted(values)}")
    return {name: values.get(name) for name in _NEW_ORDER}
