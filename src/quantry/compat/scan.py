"""Finds what a script uses of AMD's packages that quantry does not have, without running the script."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from quantry.compat.run import ROOTS, our_module
from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx import QConfig, get_default_config
from quantry.onnx.options import NESTED, ROWS, OptionRow

Fault = tuple[str, str]
"""What is missing, and why or what to use instead."""


def call_faults(node: ast.Call, function: Any, spelling: str) -> Iterator[Fault]:
    """Yield the arguments of a call that our function does not accept; only literals are checked.

    Args:
        node: The call.
        function: Our function, or None if it is unknown.
        spelling: The function's name in the script.
    """
    if function is None or not callable(function):
        return
    if function is get_default_config or function is QConfig.get_default_config:
        yield from _named(node, spelling)
        return
    known = _parameters(function)
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg == "extra_options" and isinstance(keyword.value, ast.Dict):
            yield from _options(keyword.value, ROWS, "extra_options")
        elif function is QConfig and keyword.arg in ROWS:
            yield from _option(ROWS[keyword.arg], keyword.value, f"{spelling}({keyword.arg}=...)")
        elif known is not None and keyword.arg not in known:
            yield f"{spelling}({keyword.arg}=...)", f"does not exist{nearest_spelling(keyword.arg, known)}"


def _named(node: ast.Call, spelling: str) -> Iterator[Fault]:
    names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    for name in names[:1]:
        try:
            get_default_config(str(name))
        except RecipeError as error:
            yield f"{spelling}({name!r})", f"does not exist: {error}"


def _parameters(function: Any) -> tuple[str, ...] | None:
    """Return the names of the parameters, or None if any keyword is accepted."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if function is QConfig:
        own = tuple(entry.name for entry in parameters if entry.kind is not inspect.Parameter.VAR_KEYWORD)
        return (*own, "extra_options", *ROWS)
    if any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters):
        return None
    return tuple(entry.name for entry in parameters)


def _options(node: ast.Dict, known: Mapping[str, OptionRow], where: str) -> Iterator[Fault]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        place = f"{where}[{key.value!r}]"
        row = known.get(key.value)
        if row is None:
            yield place, f"does not exist{nearest_spelling(key.value, known)}"
        elif key.value in NESTED and isinstance(value, ast.Dict):
            yield from _options(value, {inner.key: inner for inner in NESTED[key.value]}, place)
        else:
            yield from _option(row, value, place)


def _option(row: OptionRow, node: ast.expr, where: str) -> Iterator[Fault]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return
    if row.refused and value not in row.harmless:
        yield f"{where} = {value!r}", f"is not supported: {row.refused}"


_ABSENT = object()


@dataclass(frozen=True)
class Missing:
    """Something that a script uses and quantry does not have.

    Attributes:
        path: The file.
        line: The line.
        name: What is missing, in AMD's spelling.
        why: The reason or a suggestion; may be empty.
    """

    path: Path
    line: int
    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}{self.why and f' {self.why}'}"


def scan_script(script: Path) -> tuple[Missing, ...]:
    """Return what a script and the local modules it imports use of AMD's packages that quantry does not have.

    Args:
        script: The script.

    Raises:
        RecipeError: It cannot be read or is not valid Python.
    """
    found: dict[tuple[str, str], Missing] = {}
    waiting, seen = [script], {script.resolve()}
    while waiting:
        path = waiting.pop()
        tree = _parsed(path)
        for entry in _Scan(path).of(tree):
            found.setdefault((str(entry.path), entry.name), entry)
        for module in _local_modules(tree, path.parent):
            if module.resolve() not in seen:
                seen.add(module.resolve())
                waiting.append(module)
    return tuple(sorted(found.values(), key=lambda entry: (str(entry.path), entry.line)))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RecipeError(f"SCRIPT must be a readable file, got {path}: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise RecipeError(f"SCRIPT must be valid Python, got {path}: {error}") from error


def _local_modules(tree: ast.Module, folder: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            stem = folder.joinpath(*name.split("."))
            yield from (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())


class _Scan:
    """Checks one file: first its imports, which define names, then the use of these names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, Any] = {}
        self._spellings: dict[str, str] = {}

    def of(self, tree: ast.Module) -> Iterator[Missing]:
        guarded = _guarded(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                faults = list(self._imported(node))
                if id(node) not in guarded:
                    yield from faults
        # Check a.b.c once as a whole, not a.b again.
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                yield from self._attribute(node)
            if isinstance(node, ast.Call):
                for name, why in call_faults(node, self._value(node.func), ast.unparse(node.func)):
                    yield Missing(self._path, node.lineno, name, why)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[Missing]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._import(node, alias)
            return
        module = node.module or ""
        if node.level or module.partition(".")[0] not in ROOTS:
            return
        owner, why = _module(module)
        if owner is None:
            yield Missing(self._path, node.lineno, module, why)
            return
        for alias in node.names:
            if alias.name == "*":
                self._names |= {name: getattr(owner, name) for name in getattr(owner, "__all__", ())}
                continue
            value = _member(owner, module, alias.name)
            if value is _ABSENT:
                yield Missing(self._path, node.lineno, f"{module}.{alias.name}", _hint(owner, alias.name))
            else:
                self._bind(alias.asname or alias.name, value, f"{module}.{alias.name}")

    def _import(self, node: ast.Import, alias: ast.alias) -> Iterator[Missing]:
        root = alias.name.partition(".")[0]
        if root not in ROOTS:
            return
        module, why = _module(alias.name)
        if module is None:
            yield Missing(self._path, node.lineno, alias.name, why)
        elif alias.asname:
            self._bind(alias.asname, module, alias.name)
        else:
            self._bind(root, our_module(root), root)

    def _bind(self, name: str, value: Any, spelling: str) -> None:
        self._names[name], self._spellings[name] = value, spelling

    def _attribute(self, node: ast.Attribute) -> Iterator[Missing]:
        chain = _chain(node)
        if not chain or chain[0] not in self._spellings:
            return
        value, spelling = self._names[chain[0]], self._spellings[chain[0]]
        for name in chain[1:]:
            if not isinstance(value, ModuleType | type):
                return  # Attributes of objects are known only at run time.
            owner, spelling, value = value, f"{spelling}.{name}", _member(value, spelling, name)
            if value is _ABSENT:
                yield Missing(self._path, node.lineno, spelling, _hint(owner, name))
                return

    def _value(self, node: ast.expr) -> Any:
        chain = _chain(node)
        value = self._names.get(chain[0], _ABSENT) if chain else _ABSENT
        for name in chain[1:]:
            value = _member(value, "", name)
        return None if value is _ABSENT else value


def _module(name: str) -> tuple[ModuleType | None, str]:
    """Return our module for one of AMD's, and the reason if there is none."""
    try:
        return our_module(name), "is a module that quantry does not have"
    except ImportError as error:
        return None, f"cannot be imported: {error}"


def _chain(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return (*before, node.attr) if before else ()
    return ()


def _member(owner: Any, spelling: str, name: str) -> Any:
    value = getattr(owner, name, _ABSENT)
    if value is _ABSENT and isinstance(owner, ModuleType) and spelling:
        return our_module(f"{spelling}.{name}") or _ABSENT
    return value


def _hint(owner: Any, name: str) -> str:
    known = [known for known in getattr(owner, "__all__", dir(owner)) if not known.startswith("_")]
    return f"does not exist{nearest_spelling(name, known)}"


def _guarded(tree: ast.Module) -> set[int]:
    """Return the imports whose failure the script handles itself."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(_catches_import(handler) for handler in node.handlers):
            found |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return found


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
