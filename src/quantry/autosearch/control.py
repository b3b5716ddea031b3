"""Pause, resume and stop a running search from outside, through a file in its output directory."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from quantry.autosearch.state import SearchState
from quantry.autosearch.stop import Stop, StopKind
from quantry.autosearch.trial import Trial
from quantry.errors import RecipeError
from quantry.files import read_regular, write_file

Action = Literal["run", "pause", "stop"]

_FILE = "control.json"
_POLL_SECONDS = 0.2


def request(folder: Path, action: Action) -> None:
    """Ask the search in an output directory to run, to pause or to stop after the trials that are running.

    Raises:
        RecipeError: There is no such action.
    """
    if action not in get_args(Action):
        raise RecipeError(f"an action must be one of {', '.join(get_args(Action))}, got {action!r}")
    write_file(folder / _FILE, json.dumps({"action": action}), synced=False)


def requested(folder: Path) -> Action:
    """Return what was asked of the search in an output directory."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        action = json.loads(read_regular(folder / _FILE))["action"]
        if action in get_args(Action):
            return action  # type: ignore[no-any-return]  # it is one of the literals
    return "run"


class ControlFile:
    """Follows requests: waits between two trials while the search is paused, and stops it.

    Running trials are finished first, so that no work is lost. A stopped search can be resumed like any other.
    """

    def on_start(self, state: SearchState, lines: list[str]) -> None:  # noqa: ARG002 - the state is enough
        """Forget requests to an earlier search."""
        (state.directory.path / _FILE).unlink(missing_ok=True)

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Pause or stop after a trial."""
        if trial.number in state.restored:
            return
        folder = state.directory.path
        if requested(folder) == "pause":
            state.message("paused on request")
            while requested(folder) == "pause":
                time.sleep(_POLL_SECONDS)
            state.message("resumed on request")
        if requested(folder) == "stop" and state.stopped_by is None:
            state.stopped_by = Stop(StopKind.REQUEST)

    def on_message(self, state: SearchState, line: str) -> None:
        """Do nothing: messages are for the log."""

    def on_end(self, state: SearchState, reason: str) -> None:  # noqa: ARG002 - the state is enough
        """Forget requests."""
        (state.directory.path / _FILE).unlink(missing_ok=True)
