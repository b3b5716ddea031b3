"""``quantry cache``: the store of results on disk."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantry.cli.frame import ExitCode, current_output
from quantry.errors import RecipeError
from quantry.recipe.json_result import Count, JsonResult

if TYPE_CHECKING:
    from quantry.memo import StoreUsage

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

Store = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the store; default: $QUANTRY_CACHE or ~/.cache/quantry."),
]


@dataclass(frozen=True)
class SizeResult(JsonResult):
    """How large a store is.

    Attributes:
        store: The folder.
        usage: What it holds.
    """

    store: Path
    usage: "StoreUsage"


@dataclass(frozen=True)
class PruneResult(JsonResult):
    """What was deleted from a store.

    Attributes:
        store: The folder.
        before: What it held.
        after: What it holds.
    """

    store: Path
    before: "StoreUsage"
    after: "StoreUsage"


@dataclass(frozen=True)
class ClearResult(JsonResult):
    """What was deleted from a store.

    Attributes:
        store: The folder.
        deleted: All that it held.
    """

    store: Path
    deleted: "StoreUsage"


@dataclass(frozen=True)
class VerifyResult(JsonResult):
    """How intact a store is.

    Attributes:
        store: The folder.
        checked: Number of values read.
        damaged: The values that were damaged and deleted.
    """

    store: Path
    checked: Count
    damaged: tuple[Path, ...]


def size(store: Store = None) -> None:
    """Print how many results are stored and how much space they take."""
    from quantry.memo import store_usage

    folder = _folder(store)
    usage = store_usage(folder)
    out = current_output()
    out.answer.print(
        f"{readable(usage.bytes_on_disk)} in {usage.blobs} values, {usage.results} results; {folder}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    out.result(SizeResult(folder, usage))


def prune(
    to: Annotated[str, typer.Option("--to", help="Size to shrink to, such as 2GB or 500MB.")] = "5GB",
    store: Store = None,
) -> None:
    """Delete the least recently used results until the store is small enough."""
    from quantry.memo import prune_store, store_usage

    folder, limit = _folder(store), byte_count("--to", to)
    before = store_usage(folder)
    after = prune_store(folder, limit)
    out = current_output()
    out.answer.print(
        f"deleted {readable(before.bytes_on_disk - after.bytes_on_disk)}; {readable(after.bytes_on_disk)} are left",
        highlight=False,
    )
    out.result(PruneResult(folder, before, after))


def clear(store: Store = None) -> None:
    """Delete all stored results; this is always safe, they are computed again when needed."""
    from quantry.memo import clear_store

    folder = _folder(store)
    deleted = clear_store(folder)
    out = current_output()
    out.answer.print(f"deleted {readable(deleted.bytes_on_disk)} in {deleted.blobs} values", highlight=False)
    out.result(ClearResult(folder, deleted))


def verify(store: Store = None) -> None:
    """Read every stored value and delete damaged ones; exit code 3 if there were any."""
    from quantry.memo import store_usage, verify_store

    folder = _folder(store)
    checked = store_usage(folder).blobs
    damaged = verify_store(folder)
    out = current_output()
    out.answer.print(f"{checked} values checked, {len(damaged)} damaged and deleted", highlight=False)
    code = ExitCode.NOT_GOOD_ENOUGH if damaged else ExitCode.GOOD
    out.result(VerifyResult(folder, checked, damaged), code)


def _folder(store: Path | None) -> Path:
    from quantry.quantization import default_store_path

    folder = store or default_store_path()
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"--store must be a folder, got the file {folder}")
    return folder


def byte_count(option: str, text: str) -> int:
    """Return a size such as ``2GB`` in bytes.

    Args:
        option: Name of the option, for the message.
        text: The size.

    Raises:
        RecipeError: The text is not a size.

    Example:
        >>> byte_count("--to", "1.5 MB")
        1500000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if match is None:
        raise RecipeError(f"{option} must be a size such as 500MB or 2GB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def readable(count: int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> readable(2_500_000)
        '2.5 MB'
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
