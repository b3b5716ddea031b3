"""Keeps Optuna's talk and its notes on experimental parts out of the user's terminal."""

import sys
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


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch, which the Gaussian process computes with, use one thread.

    Its matrices are tiny, and threads that wait for each other beside busy workers take a hundred times as long.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
