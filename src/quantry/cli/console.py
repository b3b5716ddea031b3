"""What several commands share: Ctrl-C and checks of paths."""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantry.cli.frame import report_interrupt
from quantry.errors import ModelError, RecipeError


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Exit with `ExitCode.INTERRUPTED` and one line of text if the user presses Ctrl-C; for the main thread only.

    Libraries in C may turn the interrupt into another exception: importing onnxruntime raises ImportError then. So the
    signal decides, not the exception.
    """
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    except BaseException:
        if came:
            sys.exit(report_interrupt(sys.argv[1:]))
        raise
    finally:
        signal.signal(signal.SIGINT, previous)


def check_model(model: Path) -> None:
    """Raise before any work if a model is no file.

    Raises:
        ModelError: There is no such file, or it is a directory.
    """
    if not model.is_file():
        raise ModelError(
            f"the model file must exist, found {'a directory' if model.is_dir() else 'nothing'}; at {model}"
        )


def check_output(target: Path, option: str = "--output") -> None:
    """Raise before any work if an output cannot be written; missing folders are created when it is saved.

    Args:
        target: The output file.
        option: Its option, for the message.

    Raises:
        RecipeError: The path is a directory, a parent is a file, or nothing can be written there.
    """
    if target.is_dir():
        raise RecipeError(f"{option} must be a file, got the directory {target}")
    nearest = next(folder for folder in target.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise RecipeError(f"the folder of {option} must be a directory, got {target}, where {nearest} is a file")
    try:
        # Permissions do not tell: a file system may be read-only or full.
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RecipeError(f"{option} must be in a writable folder, got {target}: {reason}; in {nearest}") from error
