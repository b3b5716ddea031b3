"""Importing a library."""

import importlib
from collections.abc import Callable


def import_module(name: str, attribute: str | None = None) -> Callable[[], None]:
    """Time the import of a module, and the first use of one of its names where it loads them late."""

    def job() -> None:
        module = importlib.import_module(name)
        if attribute is not None:
            getattr(module, attribute)

    return job
