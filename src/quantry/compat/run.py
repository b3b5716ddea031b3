"""Runs a script with AMD's packages replaced by ours."""

import importlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quantry.compat.import_hook import mapped_imports
from quantry.onnx.operators.custom_ops import NO_LIBRARY, skip_library


def run_script(script: Path, arguments: Sequence[str] = ()) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` would.

    Args:
        script: The script.
        arguments: What it finds in ``sys.argv`` behind its own name.

    Raises:
        SystemExit: The script has ended itself.
    """
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with mapped_imports(), _sessions_without_library():
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def _sessions_without_library() -> Iterator[None]:
    """Let sessions skip the library of custom operators that scripts register and models here do not need."""
    # By name, since the runtime is none of this room's business: only what the script calls on it is.
    runtime: Any = importlib.import_module("onnxruntime")
    original = runtime.SessionOptions

    class SessionOptions(original):  # type: ignore[misc, valid-type]
        """Options of a session."""

        def register_custom_ops_library(self, path: str) -> None:
            """Register a library, unless it is the one that is not needed."""
            if path != NO_LIBRARY:
                super().register_custom_ops_library(path)

    runtime.SessionOptions = SessionOptions
    skip_library(skipped=True)
    try:
        yield
    finally:
        runtime.SessionOptions = original
        skip_library(skipped=False)
