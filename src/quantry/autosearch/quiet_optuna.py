"""Keeps Optuna's talk and its notes on experimental parts out of the user's terminal."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Let only errors of Optuna through."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"optuna\..*")
            yield
    finally:
        optuna.logging.set_verbosity(before)
