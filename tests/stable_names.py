"""Writes what docs/stability.md calls stable: names, signatures, commands, options and presets.

``python tests/stable_names.py`` rewrites ``stable_names.txt`` before a release: what is new is stable from then on, and
a reviewer reads the difference.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")
_FUNCTIONS = ("quantize", "search", "diagnose", "fix", "write_report", "write_search_report")
_STABLE_COMMANDS = ("quantize", "search", "diagnose", "check", "convert", "nodes", "presets", "compat", "demo")
_FACADES = ("quantry.onnx", "quantry.torch", "quantry.vai_q_onnx")


def stable_names() -> list[str]:
    """Return one line for each thing that users may rely on."""
    return [*_python(), *_errors(), *_commands(), *_facades()]


def _python() -> Iterator[str]:
    import quantry

    for name in _FUNCTIONS:
        for parameter in inspect.signature(getattr(quantry, name)).parameters.values():
            keyword = " (keyword only)" if parameter.kind is parameter.KEYWORD_ONLY else ""
            required = " (required)" if parameter.default is parameter.empty else ""
            yield f"quantry.{name}: {parameter.name}{keyword}{required}"
    for name in ("DirectoryStore", "MemoryStore"):
        members = (member for member in dir(getattr(quantry, name)) if not member.startswith("_"))
        yield f"quantry.{name}: {', '.join(members)}"


def _errors() -> Iterator[str]:
    from quantry import errors

    for name, value in sorted(vars(errors).items()):
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__:
            yield f"quantry.errors.{name}({', '.join(base.__name__ for base in value.__bases__)})"


def _commands() -> Iterator[str]:
    import typer

    from quantry.cli.app import app
    from quantry.recipe import PRESETS

    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        if name in _STABLE_COMMANDS:
            for parameter in command.params:
                yield f"quantry {name}: {' '.join((*parameter.opts, *parameter.secondary_opts))}"
    yield from (f"preset {name}" for name in sorted(PRESETS))


def _facades() -> Iterator[str]:
    import importlib

    for name in _FACADES:
        module = importlib.import_module(name)
        yield from (f"{name}.{entry}" for entry in sorted(module.__all__))


if __name__ == "__main__":
    FILE.write_text("\n".join(stable_names()) + "\n", encoding="utf-8")
    sys.exit(0)
