"""One search at a time on a study that several machines can reach."""

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quantry.errors import RecipeError

if TYPE_CHECKING:
    import optuna

_ATTRIBUTE = "lease"
_SECONDS, _RENEWAL = 60.0, 15.0


class Lease:
    """Holds a study in a database for this process: a heartbeat that others see.

    The lock of the output directory is of no use on another machine. A process that dies lets go: at once for others on
    its machine, and a minute after its last heartbeat for those elsewhere.

    Args:
        study: The study.

    Raises:
        RecipeError: Another process holds it.
    """

    def __init__(self, study: "optuna.Study") -> None:
        self._study = study
        self._owner = {"host": socket.gethostname(), "process": os.getpid(), "mark": uuid.uuid4().hex}
        self._ended = threading.Event()
        holder = study.user_attrs.get(_ATTRIBUTE)
        if holder is not None and _is_held(holder):
            raise RecipeError(
                f"a study must be used by one search at a time, got {study.study_name}, which process "
                f"{holder['process']} on {holder['host']} is using; wait for it, or use another storage"
            )
        self._renew()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go."""
        self._ended.set()
        self._thread.join()
        self._study.set_user_attr(_ATTRIBUTE, {**self._owner, "until": 0.0})

    def _beat(self) -> None:
        while not self._ended.wait(_RENEWAL):
            # Where the database is gone, the search itself will find out, and say so.
            with suppress(Exception):
                self._renew()
        # Connections belong to a thread.
        self._study._storage.remove_session()

    def _renew(self) -> None:
        self._study.set_user_attr(_ATTRIBUTE, {**self._owner, "until": time.time() + _SECONDS})


def _is_held(holder: dict[str, Any]) -> bool:
    if holder["until"] < time.time():
        return False
    return holder["host"] != socket.gethostname() or _is_alive(int(holder["process"]))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
