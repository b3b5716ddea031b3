"""The search under AMD Quark's name."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from quantry.autosearch import SearchOptions, SearchResult, Space, Trial, run_search
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.errors import DataError, RecipeError
from quantry.graph.float_model import InputSignature, input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.onnx.auto_search.arguments import search_arguments
from quantry.onnx.auto_search.candidates import Candidate, candidate, candidates
from quantry.onnx.auto_search.configuration import Configuration, RecipeMaker, nested, starting_config
from quantry.onnx.auto_search.evaluators import metric_evaluator, user_evaluator
from quantry.onnx.auto_search.finetune_range import finetune_space
from quantry.onnx.auto_search.list_build import INDEX, list_space, place
from quantry.onnx.auto_search.search_space import SearchSpace
from quantry.onnx.auto_search.settings import Settings
from quantry.onnx.auto_search.stages import finetune_stage, has_both_parts, without_finetuning

_LOG = logging.getLogger("quantry")


class AutoSearch:
    """Searches for the configuration whose quantized model is nearest to the float one.

    Both orders of arguments are taken: ``AutoSearch(config, auto_search_config, model_input, calibration_data_reader)``
    as the documents have it, and ``AutoSearch(model_input, config, auto_search_config, eval_dataloader,
    calibration_data_reader, calibration_data_path)`` as AMD Quark 0.13 has it; all may be keywords. Neither
    configuration is ever written to.

    Attributes:
        config: The starting quantization configuration.
        auto_search_config: What was given; `settings` is what it means.
        settings: What is asked for.
        model_input: The float model.
        result: What the last `search_model` found, every trial included; None before. Of a search in two stages it is
            the stage with the best model.
        stages: What both stages of a search in two stages found; empty otherwise.

    Raises:
        RecipeError: An argument or a setting cannot be used.

    Example:
        >>> search = AutoSearch(config, AutoSearchConfig, "model.onnx", reader)  # doctest: +SKIP
        >>> search.search_model()[0]["model_path"]  # doctest: +SKIP
        'iter_3.onnx'
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        given = search_arguments(arguments, keywords)
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
        _refuse_other_models(self._maker)
        self._assigned: list[Mapping[str, Any]] | None = None
        self._built: list[Configuration] | None = None

    @property
    def all_configs(self) -> list[Mapping[str, Any]]:
        """The configurations to try: those of ``search_space``, or what was assigned, whose order is then kept."""
        if self._assigned is not None:
            return self._assigned
        if self._built is None:
            self._built = self._search_space.get_all_configs()
        return list(self._built)

    @all_configs.setter
    def all_configs(self, configurations: Sequence[Mapping[str, Any]]) -> None:
        self._assigned = list(configurations)

    def build_all_configs(self, search_space: Mapping[str, Any]) -> list[Configuration]:
        """Return the configurations of a space; invalid and repeated ones are left out, with the reasons in the log.

        Args:
            search_space: Nested dictionary of lists.

        Returns:
            Nested dictionaries; lists of several spaces can be added up and assigned to `all_configs`.
        """
        return SearchSpace(search_space, self._maker.base).get_all_configs()

    def search_model(self) -> list[Candidate]:
        """Search, and return the candidates.

        Returns:
            The configurations within tolerance in the order they were tried, each as `candidate` describes; where none
            is, the best one, with ``within_tolerance`` False and a warning that says how far it is. Its model is also
            ``best.onnx`` in the output directory, beside its ``recipe.yaml``. The search of finetuning parameters has
            the best first, and the search in two stages returns that alone.

        Raises:
            UserError: Model, data or settings cannot be used.
        """
        if self.settings.advanced_fastft_search:
            return self._search_finetuning()
        if self.settings.two_stage_search:
            if has_both_parts(self.all_configs, self._maker.base):
                return self._search_in_stages()
            _LOG.warning(
                "two_stage_search needs configurations with and without calibration options and FastFinetune, and "
                "include_fast_ft=True somewhere; the space lacks one of them, so that the normal search is run"
            )
        result = self._run(self._space(), self._options())
        return candidates(result, self._describe, self._metric)

    def _space(self) -> Space:
        if self._assigned is not None:
            return list_space(self._maker, self._assigned)
        return self._search_space.space()

    @cached_property
    def _search_space(self) -> SearchSpace:
        return SearchSpace(self.settings.search_space, self._maker.base)

    def _options(self, **changes: Any) -> SearchOptions:
        settings = self.settings
        options: dict[str, Any] = {
            "sampler": settings.sampler,
            "tolerance": settings.search_metric_tolerance,
            "stop": settings.stop,
            "seed": settings.search_seed,
            "n_jobs": settings.n_jobs,
            "racing": settings.search_racing,
            "trial_timeout": settings.search_trial_timeout,
            "output_dir": Path(settings.search_output_dir),
            "log_path": None if settings.search_log_path is None else Path(settings.search_log_path),
            "devices": settings.devices,
        }
        return SearchOptions(**{**options, **changes})

    def _run(self, space: Space, options: SearchOptions) -> SearchResult:
        data, evaluation = self._data()
        options.output_dir.mkdir(parents=True, exist_ok=True)
        evaluator = self._evaluator(data, evaluation)
        self.result = run_search(self._model_path(), data, evaluator, space, options, self._store())
        return self.result

    def _store(self) -> Path | None:
        cache = self.settings.search_cache_dir
        return Path(cache) / "store" if cache is not None else Path(self.settings.search_output_dir) / "store"

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
        """Return data for calibration and for evaluation; a reader is read once and kept."""
        reader, path = self.calibration_data_reader, self.calibration_data_path
        if reader is not None and path is not None:
            raise DataError("calibration data must come from one place, got calibration_data_reader and _path")
        if not hasattr(self, "_opened"):
            inputs = self._inputs()
            calibration = calibration_data(reader if path is None else path, inputs)
            given = self.eval_dataloader
            self._opened = (calibration, calibration if given is None else calibration_data(given, inputs))
        return self._opened

    def _inputs(self) -> tuple[InputSignature, ...]:
        return input_signatures(model_source(self.model_input).load())

    def _model_path(self) -> Path:
        if isinstance(self.model_input, str | Path):
            return Path(self.model_input)
        path = Path(self.settings.search_output_dir) / "float.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_model(model_source(self.model_input).load(), path)
        return path

    def _describe(self, trial: Trial) -> tuple[int | None, Mapping[str, Any]]:
        if INDEX in trial.assignment:
            index = place(trial.assignment)
            return index, self.all_configs[index]
        configuration = nested(trial.assignment)
        if not self._search_space.is_finite:
            return None, configuration
        return self._search_space.place_of(trial.recipe), configuration

    def _search_in_stages(self) -> list[Candidate]:
        """Search calibration without finetuning, then finetuning of the best; stop conditions are off."""
        output = Path(self.settings.search_output_dir)
        everything = self.all_configs
        first = without_finetuning(everything)
        changes = {"stop": type(self.settings.stop)(), "sampler": "grid", "racing": False}
        calibrated = self._run(
            list_space(self._maker, first, "calibration"), self._options(output_dir=output / "calibration", **changes)
        )
        if calibrated.best is None:
            raise RecipeError(f"two_stage_search found no calibration that works: {'; '.join(calibrated.notes)}")
        chosen = first[place(calibrated.best.assignment)]
        second = finetune_stage(chosen, everything)
        tuned = self._run(
            list_space(self._maker, second, "finetuning"), self._options(output_dir=output / "finetuning", **changes)
        )
        self.stages = (calibrated, tuned)
        result, configurations = self._better((calibrated, first), (tuned, second))
        self.result = result
        assert result.best is not None
        index = place(result.best.assignment)
        found = candidate(result.best, result, index, configurations[index], self._metric)
        return [found | {"model_path": str(result.best_model), "stage": result.output_dir.name}]

    @staticmethod
    def _better(*stages: tuple[SearchResult, list[Configuration]]) -> tuple[SearchResult, list[Configuration]]:
        """Return the stage with the best model; the first where finetuning did not help."""
        drops = [inf if result.best is None else (result.best.drop or 0.0) for result, _ in stages]
        return stages[drops.index(min(drops))]

    def _search_finetuning(self) -> list[Candidate]:
        """Search iterations and learning rate of finetuning as numbers, in one study."""
        if self._assigned is not None:
            raise RecipeError("advanced_fastft_search takes search_space alone, got an assignment to all_configs")
        sampler, trials = self.settings.advanced()
        devices = self.settings.devices
        jobs = max(self.settings.n_jobs, len(devices) or 1)
        # A worker sees its own device alone, under the first number.
        device = "cuda:0" if devices else None
        leg = self.settings.advanced_fastft_params.get("leg")
        space = finetune_space(self.settings.search_space, self._maker, device, leg)
        stop = type(self.settings.stop)(iterations=trials * jobs)
        result = self._run(space, self._options(sampler=sampler, stop=stop, n_jobs=jobs, racing=False))
        found = candidates(result, lambda trial: (None, nested(trial.assignment)), self._metric)
        return sorted(found, key=lambda entry: float(entry["difference"]))


def _refuse_other_models(maker: RecipeMaker) -> None:
    """Refuse options that change the model before it is quantized: an evaluator would be given another one."""
    if "FixShapes" in (maker.base.extra_options or {}):
        raise RecipeError(
            "extra_options['FixShapes'] cannot be used in a search, whose evaluator is given the float model as it is; "
            "write the model with those shapes first"
        )
