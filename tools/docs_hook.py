"""Adds generated pages to the documentation site: commands and recipe fields from the code, notebooks as Markdown."""

import dataclasses
import importlib
import inspect
import json
import re
import sys
import typing
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages.

    Args:
        files: The files of the site.
        config: The configuration of the site.
    """
    pages = {
        "reference/commands.md": commands_page(),
        "reference/recipe.md": recipe_page(),
        "benchmarks.md": _benchmarks().benchmarks_page(),
    }
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to files outside docs/ at names, because the site does not contain them."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!docs)[^)#]+\)", r"\1", markdown)


def _benchmarks() -> Any:
    """Return docs_benchmarks, which lies next to this file; mkdocs loads hooks by path."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module("docs_benchmarks")


def commands_page() -> str:
    """Return the reference of all commands, from the parser itself."""
    from typer.main import get_command

    from quantry.cli.app import app

    parts = ["# Commands", "Every command also has `--json`, `-q` and `-v`; see [exit codes](../exit-codes.md)."]
    for name, command in sorted(get_command(app).commands.items()):  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        for own, one in sorted(inner.items()) if inner else [("", command)]:
            parts.append(_command(f"quantry {name} {own}".rstrip(), one))
    return "\n\n".join(parts) + "\n"


def _command(title: str, command: Any) -> str:
    rows = ["| argument | meaning |", "|---|---|"]
    for parameter in command.params:
        if parameter.name.startswith("output_") or parameter.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        rows.append(f"| {names} | {_cell(getattr(parameter, 'help', '') or '')} |")
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("quantry")]
    shown = "\n".join(["```", *examples, "```"]) if examples else ""
    parts = (f"## {title}", _cell(inspect.cleandoc(command.help or "")), shown, "\n".join(rows), _keys(title))
    return "\n\n".join(parts)


def _keys(title: str) -> str:
    """Return the keys of a command's result with ``--json``, from its schema."""
    from quantry.cli.json_schemas import RESULTS

    name = title.removeprefix("quantry ")
    whole = RESULTS[name]
    rows = [
        f"| `{key}` | {_cell(part['description'])} |"
        for variant in whole.get("anyOf", [whole])
        for key, part in variant.get("properties", {}).items()
    ]
    if not rows:
        return f"With `--json`: {_cell(whole['description'])}."
    return "\n".join(["| key of `result` with `--json` | meaning |", "|---|---|", *dict.fromkeys(rows)])


def recipe_page() -> str:
    """Return the reference of all fields of a recipe, from their types and docstrings."""
    from quantry.recipe import Recipe
    from quantry.recipe.checked import type_hints

    seen: dict[str, Any] = {}
    waiting: list[Any] = [Recipe]
    while waiting:
        cls = waiting.pop(0)
        if cls.__name__ not in seen:
            seen[cls.__name__] = cls
            for hint in type_hints(cls).values():
                waiting += [part for part in _types(hint) if dataclasses.is_dataclass(part)]
    parts = ["# Recipe fields", "`quantry schema recipe` prints the same as JSON Schema."]
    return "\n\n".join((*parts, *(_fields(cls, type_hints(cls)) for cls in seen.values()))) + "\n"


def _types(hint: Any) -> list[Any]:
    inner = typing.get_args(hint)
    return [part for one in inner for part in _types(one)] if inner else [hint]


def _fields(cls: Any, hints: dict[str, Any]) -> str:
    from quantry.recipe.checked import field_docs

    docs = field_docs(cls)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for part in dataclasses.fields(cls):
        kind = " or ".join(dict.fromkeys(getattr(one, "__name__", str(one)) for one in _types(hints[part.name])))
        default = "" if part.default is dataclasses.MISSING else f"`{part.default!r}`"
        shown = default if len(default) < 60 else "see its type"
        rows.append(f"| `{part.name}` | {_cell(kind)} | {_cell(shown)} | {_cell(docs.get(part.name, ''))} |")
    summary = (cls.__doc__ or "").partition("\n")[0]
    return "\n\n".join((f"## {cls.__name__}", summary, "\n".join(rows) if len(rows) > 2 else ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def notebook_page(path: Path) -> str:
    """Return an executed notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append("".join(data["text/html"]).replace("\n", " "))
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
