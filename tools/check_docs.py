"""Checks the code of the documentation: Python blocks must compile, and every `quantry` command must parse."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"\.\.\.|\$|<[a-z]|\b[A-Z]{3,}\b(?!8)")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each code block of a page."""
    yield from _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(content: str) -> Iterator[list[str]]:
    """Yield the words of each complete `quantry` command of a block."""
    for line in content.replace("\\\n", " ").splitlines():
        text = line.strip().removeprefix("$ ").partition("  #")[0]
        if text.startswith("quantry ") and not _PLACEHOLDER.search(text):
            yield shlex.split(text.partition(" > ")[0].partition(" | ")[0])[1:]


def problems(page: Path) -> Iterator[str]:
    """Yield what is wrong with the code of a page."""
    from typer.main import get_command

    from quantry.cli.app import app

    for language, content in blocks(page):
        if language == "python":
            try:
                compile(content, str(page), "exec")
            except SyntaxError as error:
                yield f"{page.relative_to(ROOT)}: {error}"
        for words in commands(content) if language in ("", "sh", "bash", "console") else ():
            try:
                _parse(get_command(app), words)
            except Exception as error:  # the parser's errors have no common public class
                yield f"{page.relative_to(ROOT)}: quantry {shlex.join(words)}: {type(error).__name__} {error}"


def _parse(root: object, words: list[str]) -> None:
    command, rest = root, list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    if not hasattr(command, "commands") and "--help" not in rest:
        command.make_context("quantry", rest)  # type: ignore[attr-defined]


def main() -> None:
    """Print all problems; exit with 1 if there are any."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [problem for page in pages for problem in problems(page)]
    print("\n".join(found) or f"the code of {len(pages)} pages is sound")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
