"""One door for files that go out: what is written goes through `quantry.files`, which follows no links."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent
WRITING = {"write_text", "write_bytes", "replace_file", "mkstemp", "NamedTemporaryFile", "savez", "tofile"}
ALLOWED = {
    "files.py": "it is the door",
    "memo/_blob_files.py": "creates the parts of a blob, and only creates, in a new folder that is then renamed",
    "autosearch/data_split.py": "an entry of an archive in memory",
    "targets/backends/ort_web.py": "in a temporary folder of its own",
}


def writes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that open a file for writing or write one by its path."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [
            argument.value
            for argument in (*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode"))
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ]
        if name in WRITING or (name == "open" and any(set(mode) & set("wax+") and len(mode) < 4 for mode in modes)):
            yield node.lineno


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_written_through_the_one_door(path: Path) -> None:
    if str(path.relative_to(SOURCE)) not in ALLOWED:
        assert not list(writes(ast.parse(path.read_text(encoding="utf-8")))), "write it with quantry.files"


def test_every_exception_is_still_one() -> None:
    for name in ALLOWED:
        text = (SOURCE / name).read_text(encoding="utf-8")
        assert name == "files.py" or list(writes(ast.parse(text))), name
