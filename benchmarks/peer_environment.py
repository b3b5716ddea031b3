"""Makes the virtual environment of the peer, AMD Quark, outside the project's own.

Run: python -m benchmarks.peer_environment
"""

import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.locations import NotAvailable, peer_environment

TORCH = "torch==2.13.0"
REQUIREMENTS = (
    TORCH,
    "amd-quark==0.13",
    "numpy==2.4.6",
    "onnx==1.22.0",
    "onnxruntime==1.31.1",
    "onnxslim==0.1.98",
)
"""Quark 0.13 with the versions it is known to work with, and the onnxruntime that quantry uses."""

_STAMP = "quantry-peer-requirements.txt"


def peer_python() -> Path:
    """Return the peer's interpreter, after making its environment where it is missing or of other versions.

    Raises:
        NotAvailable: The environment cannot be made.
    """
    found = _made()
    if isinstance(found, NotAvailable):
        raise found
    return found


@cache
def _made() -> Path | NotAvailable:
    # A failure is remembered too: asking again in every row would take minutes each time.
    try:
        return _make()
    except NotAvailable as reason:
        return reason


def _make() -> Path:
    folder = peer_environment()
    python = folder / "bin" / "python"
    wanted = "\n".join(REQUIREMENTS)
    stamp = folder / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Preparing the peer's environment in {folder} (about 2 GB, once) ...", flush=True)
    _run(sys.executable, "-m", "venv", str(folder))
    # torch is asked for alone and exactly first: any other request may bring gigabytes of GPU libraries along.
    _install(python, TORCH)
    _install(python, *REQUIREMENTS)
    _run(str(python), "-c", "import quark.onnx")
    stamp.write_text(wanted)
    return python


def _install(python: Path, *requirements: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotAvailable(f"the peer is not available: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotAvailable(f"the peer is not available: {' '.join(command[1:3])} failed: {last}")


def main() -> int:
    """Make the environment and say where it is."""
    try:
        print(peer_python())
    except NotAvailable as reason:
        print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
