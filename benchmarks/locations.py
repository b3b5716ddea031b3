"""Where things lie: the repository, the shared models and data, and what the benchmarks keep."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "out"
RESULTS = ROOT / "benchmarks" / "results"
CHARTS = ROOT / "benchmarks" / "charts"
README = ROOT / "benchmarks" / "README.md"


class NotAvailable(Exception):  # noqa: N818 - a reason to skip, not a fault
    """Something that a measurement needs is not on this machine; the text says what."""


def cache() -> Path:
    """Return the folder for generated models and prepared samples: ``$QUANTRY_BENCH_CACHE`` or the user's cache."""
    configured = os.environ.get("QUANTRY_BENCH_CACHE")
    if configured:
        return Path(configured)
    return user_cache() / "quantry-bench"


def peer_environment() -> Path:
    """Return the folder of the peer's virtual environment: ``$QUANTRY_PEER_VENV`` or one in the user's cache."""
    configured = os.environ.get("QUANTRY_PEER_VENV")
    if configured:
        return Path(configured)
    return user_cache() / "quantry-peer" / "venv"


def shared(*parts: str) -> Path:
    """Return a path inside the shared models and data: ``$QUANTRY_DATA``, else ``../shared/data``.

    Raises:
        NotAvailable: It is not there.
    """
    root = Path(os.environ.get("QUANTRY_DATA") or ROOT.parent / "shared" / "data")
    path = root.joinpath(*parts)
    if not path.exists():
        raise NotAvailable(f"no {'/'.join(parts)} among the shared data; set QUANTRY_DATA to their folder")
    return path


def user_cache() -> Path:
    """Return the folder in which programs of this user keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
