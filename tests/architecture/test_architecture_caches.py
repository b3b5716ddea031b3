"""Results are cached by the memo; every other cache has a comment with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent
CACHES = {"cache", "lru_cache", "WeakKeyDictionary", "WeakValueDictionary"}


def called(node: ast.AST) -> str:
    """Return the last part of the name of a function, called or not."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def cache_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of decorators that cache, of calls of them, and of weak dictionaries in modules."""
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if called(decorator) in CACHES:
                yield decorator.lineno
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and called(node.value) in CACHES:
            yield node.lineno


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_cache_has_a_comment_with_its_reason(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number in cache_lines(ast.parse(text)):
        above = lines[number - 2].strip() if number > 1 else ""
        assert "#" in lines[number - 1] or above.startswith("#"), f"line {number}: say what the cache saves"
