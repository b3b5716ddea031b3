"""Where a command may write."""

from pathlib import Path

from quantry.errors import RecipeError


def check_output(target: Path, option: str = "--output") -> None:
    """Refuse an output that could not be written, before any work; missing folders are made when it is saved.

    Args:
        target: The file to be written.
        option: Where it was given, for the message.

    Raises:
        RecipeError: The path is a directory, or leads through a file.
    """
    if target.is_dir():
        raise RecipeError(f"{option} must be a file, got the directory {target}")
    nearest = next(folder for folder in target.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise RecipeError(f"{option} must be in a directory, got {target}, where {nearest} is a file")
