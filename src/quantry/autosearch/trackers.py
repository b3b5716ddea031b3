"""Send the trials of a search to other tools: MLflow, Weights & Biases, and a study for optuna-dashboard."""

import math
from typing import Any

from quantry.autosearch.output import SearchCallback
from quantry.autosearch.samplers import quiet_optuna
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_row import trial_values
from quantry.errors import MissingExtraError

TRACKERS = ("mlflow", "wandb")
"""Names that `SearchOptions.log_to` accepts."""


def trackers(names: tuple[str, ...]) -> list[SearchCallback]:
    """Return the callbacks of these tools.

    Raises:
        MissingExtraError: The package of a tool is not installed.
    """
    kinds: dict[str, type[SearchCallback]] = {"mlflow": MlflowTracker, "wandb": WandbTracker}
    return [kinds[name]() for name in names]


def _parameters(trial: Trial) -> dict[str, str]:
    values = trial_values(trial)
    return {name: str(values[f"params.{name}"]) for name in trial.assignment}


def _numbers(trial: Trial) -> dict[str, float]:
    values = {**trial.objectives, **trial_values(trial)}
    numbers = {name: values[name] for name in ("score", "drop", "seconds", *trial.objectives)}
    return {name: float(value) for name, value in numbers.items() if value is not None and math.isfinite(value)}


class MlflowTracker:
    """Logs one MLflow run per search with a nested run per trial; MLFLOW_TRACKING_URI says where."""

    def __init__(self) -> None:
        self._mlflow = _imported("mlflow")
        self._run: Any = None

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Start the run of the search."""
        self._run = self._mlflow.start_run(run_name=f"quantry {state.model_name}")
        self._mlflow.set_tags({"model": state.model_name, "metric": state.metric, "search": " ".join(lines[:1])})

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Log a trial, unless it was logged before an interruption."""
        if trial.number in state.restored:
            return
        with self._mlflow.start_run(run_name=f"trial {trial.number}", nested=True):
            self._mlflow.log_params({"trial": trial.number, **_parameters(trial)})
            self._mlflow.log_metrics(_numbers(trial))
            self._mlflow.set_tag("state", trial.state)
        if state.best is not None and state.best.score is not None:
            self._mlflow.log_metric("best", state.best.score, step=trial.number)

    def on_message(self, state: SearchState, line: str) -> None:
        """Do nothing: messages are for the log."""

    def on_end(self, state: SearchState, reason: str) -> None:
        """Log the best recipe and end the run."""
        self._mlflow.set_tag("stopped by", reason)
        if state.directory.best_recipe.exists():
            self._mlflow.log_artifact(str(state.directory.best_recipe))
        self._mlflow.end_run()


class WandbTracker:
    """Logs one Weights & Biases run per search with a step per trial; WANDB_MODE=offline needs no network."""

    def __init__(self) -> None:
        self._wandb = _imported("wandb")
        self._run: Any = None

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Start the run."""
        self._run = self._wandb.init(
            project="quantry",
            name=state.model_name,
            dir=str(state.directory.path),
            config={"model": state.model_name, "metric": state.metric, "search": " ".join(lines[:1])},
        )

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Log a trial, unless it was logged before an interruption."""
        if trial.number in state.restored:
            return
        best = {} if state.best is None or state.best.score is None else {"best": state.best.score}
        self._run.log({**_numbers(trial), **best, **_parameters(trial), "trial": trial.number}, step=trial.number)

    def on_message(self, state: SearchState, line: str) -> None:
        """Do nothing: messages are for the log."""

    def on_end(self, state: SearchState, reason: str) -> None:  # noqa: ARG002 - the reason is enough
        """End the run."""
        self._run.summary["stopped by"] = reason
        self._run.finish()


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"log_to {name!r} needs the package {name}, which is not installed; pip install 'quantry[{name}]'"
        ) from error


class DashboardStudy:
    """Writes dashboard.journal at the end: a study for optuna-dashboard whose trials have the numbers of the search.

    The study that the search resumes from also has invalid and duplicate configurations, so its numbers differ.
    """

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Do nothing: trials are written at the end."""

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Do nothing: trials are written at the end."""

    def on_message(self, state: SearchState, line: str) -> None:
        """Do nothing: messages are for the log."""

    def on_end(self, state: SearchState, reason: str) -> None:
        """Write the study."""
        with quiet_optuna():
            self._write(state, reason)

    def _write(self, state: SearchState, reason: str) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        path = state.directory.path / "dashboard.journal"
        path.unlink(missing_ok=True)
        if not state.trials:
            return
        directions: list[Any] = [state.direction, *["minimize"] * (len(state.options.objectives) - 1)]
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            study_name=state.model_name or "search",
            directions=directions,
        )
        study.set_user_attr("metric", state.metric)
        study.set_user_attr("stopped by", reason)
        choices: dict[str, dict[str, None]] = {}
        for trial in state.trials:
            for name, value in _parameters(trial).items():
                choices.setdefault(name, {})[value] = None
        study.add_trials([self._trial(state, trial, choices) for trial in state.trials])

    def _trial(self, state: SearchState, trial: Trial, choices: dict[str, dict[str, None]]) -> Any:
        import optuna

        parameters = _parameters(trial)
        values = [trial.objectives.get(name, math.nan) for name in state.options.objectives]
        complete = trial.state == "complete" and all(math.isfinite(value) for value in values)
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE if complete else optuna.trial.TrialState.FAIL,
            params=parameters,
            distributions={
                name: optuna.distributions.CategoricalDistribution(tuple(choices[name])) for name in parameters
            },
            values=values if complete else None,
            user_attrs={"drop": trial.drop, "seconds": trial.seconds, "state": trial.state},
        )
