"""Facts stay values: code asks for kinds and numbers, and never takes a text for readers apart to learn something."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent

TEXTS = {"message", "reason", "error", "warning", "label", "title", "because", "why", "blocked", "refusal"}
"""Last words of the names of texts for readers, such as ``reason`` and ``shown_reason``; ``stopped_by`` is one too."""

TAKES_APART = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("find", "rfind", "index", "rindex", "count", "replace", "translate", "isalpha", "isdigit"),
}
"""Methods that look into a text."""

READS_PATTERN = {"match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
KEEPS_TEXT = {"lower", "upper", "casefold", "strip", "lstrip", "rstrip", "splitlines", "join", "format", "encode"}
"""Methods of a text whose result is the same text for this purpose."""

LIBRARIES = {
    "recipe/plain_text.py:_described": "JSON's and YAML's parsers: their texts end with advice for programmers",
    "targets/compare.py:_lacks_operator": "onnxruntime raises one class for every reason to refuse a model",
    "torchfront/graph_capture.py:_cause": "torch.export raises one class for several causes",
}
"""The functions that turn the text of a library's exception into a value, where it is caught, each with its reason."""


def last_word(name: str) -> str:
    return "because" if name.rstrip("s") == "stopped_by" else name.rsplit("_", 1)[-1]


def is_text(node: ast.AST, caught: set[str]) -> bool:
    """Whether an expression is a text for readers: by its name, or because it comes from a caught exception."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in caught or last_word(name) in TEXTS or is_cause(node, caught)
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[inner, *_]):
            return is_text(inner, caught) or (isinstance(inner, ast.Name) and inner.id == "note")
        case ast.Call(func=ast.Attribute(attr=method, value=inner)):
            return method in KEEPS_TEXT and is_text(inner, caught)
        case ast.Subscript(value=inner):
            return is_text(inner, caught) or (isinstance(inner, ast.Attribute) and is_cause(inner, caught))
        case ast.BoolOp(values=parts):
            return any(is_text(part, caught) for part in parts)
    return False


def is_cause(node: ast.AST, caught: set[str]) -> bool:
    """Whether an expression is a part of an exception: its arguments or what caused it."""
    return (
        isinstance(node, ast.Attribute) and node.attr in ("args", "__cause__", "__context__", "__notes__", "strerror")
    ) and is_text(node.value, caught)


def is_words(node: ast.AST) -> bool:
    """Whether an expression is a text with words in it; an empty text only means that there is none."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)
    )


def parsed(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that take a text for readers apart, search it, or recognize something by it."""
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    caught |= {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id.endswith(("Error", "Exception"))
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=owner), args=arguments):
                if (method in TAKES_APART and is_text(owner, caught)) or (
                    method in READS_PATTERN and any(is_text(argument, caught) for argument in arguments)
                ):
                    yield node
            case ast.Compare(left=left, ops=operators, comparators=others):
                for operator, one, other in zip(operators, (left, *others), others, strict=False):
                    if isinstance(operator, ast.In | ast.NotIn):
                        if is_text(one, caught) or is_text(other, caught):
                            yield node
                    elif isinstance(operator, ast.Eq | ast.NotEq):
                        texts = is_text(one, caught), is_text(other, caught)
                        if all(texts) or (any(texts) and (is_words(one) or is_words(other))):
                            yield node


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module by its path in the package."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def function_around(tree: ast.Module, line: int) -> str:
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def test_no_code_parses_a_text_for_readers(trees: dict[str, ast.Module]) -> None:
    places = [
        (f"{path}:{function_around(tree, node.lineno)}", ast.unparse(node))
        for path, tree in trees.items()
        for node in parsed(tree)
    ]
    assert [place for place in places if place[0] not in LIBRARIES] == []
    assert {function for function, _ in places} == set(LIBRARIES)


@pytest.mark.parametrize(
    "code",
    [
        "str(note).startswith('x')",
        "trial.error.partition('got ')",
        "'limit' in result.stopped_by",
        "re.match('a', step.reason)",
        "_PATTERN.fullmatch(str(note))",
        "fix.label == label",
        "fix.label == 'bias'",
        "reason != f'excluded by {name}'",
        "proposal.label in labels",
        "reason.lower().split()[0]",
        "try:\n    f()\nexcept ValueError as problem:\n    'x' in str(problem)",
        "try:\n    f()\nexcept ValueError as problem:\n    problem.args[0].split(';')",
        "try:\n    f()\nexcept ValueError as problem:\n    'x' in str(problem.__cause__)",
        "def f(problem: ModelError):\n    return str(problem).replace('a', 'b')",
    ],
)
def test_parsing_is_recognized(code: str) -> None:
    assert len(list(parsed(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "error > 0.5",
        "best.error == 0",
        "reason == ''",
        "reason is None",
        "note.kind is NoteKind.GRAPH",
        "name in errors",
        "path.startswith('x')",
        "', '.join(reasons)",
        "str(error)",
    ],
)
def test_values_are_no_parsing(code: str) -> None:
    assert not list(parsed(ast.parse(code)))


def test_messages_of_notes_are_apart_from_their_values(trees: dict[str, ast.Module]) -> None:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Note.of":
                assert not any(isinstance(part, ast.JoinedStr) for part in ast.walk(node.args[0])), path
