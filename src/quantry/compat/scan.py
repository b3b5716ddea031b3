"""Finds what a script uses of AMD's packages that quantry does not have, without running the script."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from quantry.compat.run import ROOTS, our_module
from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx import QConfig, QuantizationConfig, get_default_config
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
    if (
        function is None
        or not callable(function)
        or not str(getattr(function, "__module__", "")).startswith("quantry.")
    ):
        return
    if function is get_default_config or function is QConfig.get_default_config:
        yield from _named(node, spelling)
        return
    accepted = _parameters(function)
    yield from _too_many(node, function, spelling)
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg == "extra_options" and isinstance(keyword.value, ast.Dict):
            yield from _options(keyword.value, ROWS, "extra_options")
        elif function is QConfig and keyword.arg in ROWS:
            yield from _option(ROWS[keyword.arg], keyword.value, f"{spelling}({keyword.arg}=...)")
        elif accepted is not None and keyword.arg not in accepted:
            yield f"{spelling}({keyword.arg}=...)", f"does not exist{nearest_spelling(keyword.arg, accepted)}"


def _too_many(node: ast.Call, function: Any, spelling: str) -> Iterator[Fault]:
    """Yield a fault if a call has more arguments by position than our function."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = [entry.kind for entry in parameters]
    most = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and not starred and len(node.args) > most:
        yield f"{spelling}({len(node.args)} arguments)", f"has at most {most} arguments by position"


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
        names = tuple(entry.name for entry in parameters if entry.kind is not inspect.Parameter.VAR_KEYWORD)
        return (*names, "extra_options", *ROWS)
    if any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters):
        return None
    return tuple(entry.name for entry in parameters)


def assignment_faults(node: ast.Assign) -> Iterator[Fault]:
    """Yield options that quantry does not have and that a script sets one by one.

    For example ``config.extra_options["FastFinetune"]["BatchSize"] = 2`` or ``config.extra_options["TmpDir"] = "."``.

    Args:
        node: The assignment.
    """
    for target in node.targets:
        owner, value = target, node.value
        while isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant):
            value, owner = ast.Dict([owner.slice], [value]), owner.value
        if isinstance(owner, ast.Attribute) and owner.attr == "extra_options" and isinstance(value, ast.Dict):
            yield from _options(value, ROWS, "extra_options")


def _options(node: ast.Dict, rows: Mapping[str, OptionRow], path: str) -> Iterator[Fault]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        entry_path = f"{path}[{key.value!r}]"
        row = rows.get(key.value)
        if row is None:
            yield entry_path, f"does not exist{nearest_spelling(key.value, rows)}"
        elif key.value in NESTED and isinstance(value, ast.Dict):
            yield from _options(value, {inner.key: inner for inner in NESTED[key.value]}, entry_path)
        else:
            yield from _option(row, value, entry_path)


def _option(row: OptionRow, node: ast.expr, path: str) -> Iterator[Fault]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return
    if row.refused and value not in row.harmless:
        yield f"{path} = {value!r}", f"is not supported: {row.refused}"


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
    missing: dict[tuple[str, str], Missing] = {}
    queue, visited = [script], {script.resolve()}
    # As for python SCRIPT: absolute imports, also those of modules in packages, start at the folder of the script.
    roots = [script.parent]
    while queue:
        path = queue.pop()
        tree = _parsed(path)
        for entry in _Scan(path).of(tree):
            missing.setdefault((str(entry.path), entry.name), entry)
        for module in _local_modules(tree, path.parent, roots):
            if module.resolve() not in visited:
                visited.add(module.resolve())
                queue.append(module)
    return tuple(sorted(missing.values(), key=lambda entry: (str(entry.path), entry.line)))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))  # Bytes may start with a mark or name their encoding.
    except OSError as error:
        raise RecipeError(f"SCRIPT must be a readable file, got {path}: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise RecipeError(f"SCRIPT must be valid Python, got {path}: {error}") from error


def _local_modules(tree: ast.Module, folder: Path, roots: list[Path]) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        folders = roots
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
            folders = [folder.joinpath(*[".."] * (node.level - 1))] if node.level else roots
        for name in filter(None, names):
            segments = name.split(".")
            for root in folders:
                stems = [root.joinpath(*segments[:depth]) for depth in range(1, len(segments) + 1)]
                files = (path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py"))
                yield from (path for path in files if path.is_file())


@dataclass(frozen=True)
class _Object:
    """An object of one of our classes, as the value of a name."""

    kind: type


class _Scan:
    """Checks one file: first its imports, which define names, then the use of these names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, Any] = {}
        self._spellings: dict[str, str] = {}
        self._dicts: dict[str, ast.Dict] = {}

    def of(self, tree: ast.Module) -> Iterator[Missing]:
        guarded = _guarded(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                faults = list(self._imported(node))
                if id(node) not in guarded:
                    yield from faults
        self._assigned(tree)
        # Check a.b.c once as a whole, not a.b again.
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                yield from self._attribute(node, called)
            if isinstance(node, ast.Assign):
                for name, why in assignment_faults(node):
                    yield Missing(self._path, node.lineno, name, why)
            if isinstance(node, ast.Call):
                written = self._with_dicts(node)
                for name, why in call_faults(written, self._value(node.func), ast.unparse(node.func)):
                    yield Missing(self._path, node.lineno, name, why)

    def _assigned(self, tree: ast.Module) -> None:
        """Bind names that are only ever assigned objects of one of our classes, or one dict of options."""
        values: dict[str, list[ast.expr]] = {}
        for name, value in _bindings(tree):
            values.setdefault(name, []).append(value)
        for name, assigned in values.items():
            kinds = {self._kind(value) for value in assigned}
            kind = kinds.pop() if len(kinds) == 1 else None
            if kind is not None and name not in self._names:
                self._bind(name, _Object(kind), name)
            elif len(assigned) == 1 and isinstance(assigned[0], ast.Dict):
                self._dicts[name] = assigned[0]

    def _kind(self, node: ast.expr) -> type | None:
        """Return our class of which an expression makes an object; None if it is unknown."""
        called = self._value(node.func) if isinstance(node, ast.Call) else None
        if called is get_default_config:
            return QuantizationConfig
        return called if isinstance(called, type) and called.__module__.startswith("quantry.") else None

    def _of_object(
        self, node: ast.Attribute, chain: tuple[str, ...], kind: type, called: set[int]
    ) -> Iterator[Missing]:
        """Yield an attribute that no object of a class has."""
        name = chain[1]
        attributes = [*dir(kind), *(getattr(kind, "__dataclass_fields__", ()))]
        # Only dataclasses list all of their attributes; of other classes the methods are known.
        if name not in attributes and (is_dataclass(kind) or (len(chain) == 2 and id(node) in called)):
            hint = nearest_spelling(name, [entry for entry in attributes if not entry.startswith("_")])
            yield Missing(self._path, node.lineno, f"{kind.__name__}.{name}", f"does not exist{hint}")

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

    def _with_dicts(self, node: ast.Call) -> ast.Call:
        """Return a call with dicts instead of the names that hold them."""
        dicts = {
            entry.arg: self._dicts.get(entry.value.id) for entry in node.keywords if isinstance(entry.value, ast.Name)
        }
        keywords = [ast.keyword(entry.arg, dicts.get(entry.arg) or entry.value) for entry in node.keywords]
        return ast.copy_location(ast.Call(node.func, node.args, keywords), node)

    def _attribute(self, node: ast.Attribute, called: set[int]) -> Iterator[Missing]:
        chain = _chain(node)
        if not chain or chain[0] not in self._spellings:
            return
        value, spelling = self._names[chain[0]], self._spellings[chain[0]]
        if isinstance(value, _Object):
            yield from self._of_object(node, chain, value.kind, called)
            return
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
            if isinstance(value, _Object):
                # A method without its first parameter.
                value = getattr(object.__new__(value.kind), name, _ABSENT) if len(chain) == 2 else _ABSENT
            else:
                value = _member(value, "", name)
        return None if value is _ABSENT or isinstance(value, _Object) else value


_UNKNOWN = ast.Constant(None)
_BINDERS = ast.For | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.comprehension


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield every name that a script binds, with the expression it is assigned if that is all it is bound by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, _UNKNOWN
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (
                    (name, node.value if isinstance(target, ast.Name) else _UNKNOWN) for name in _stored(target)
                )
        elif isinstance(node, _BINDERS):
            yield from ((name, _UNKNOWN) for name in _stored(node.target))


def _stored(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


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
        chain = _chain(node.value)
        return (*chain, node.attr) if chain else ()
    return ()


def _member(owner: Any, spelling: str, name: str) -> Any:
    value = getattr(owner, name, _ABSENT)
    if value is _ABSENT and isinstance(owner, ModuleType) and spelling:
        return our_module(f"{spelling}.{name}") or _ABSENT
    return value


def _hint(owner: Any, name: str) -> str:
    public = [entry for entry in getattr(owner, "__all__", dir(owner)) if not entry.startswith("_")]
    return f"does not exist{nearest_spelling(name, public)}"


def _guarded(tree: ast.Module) -> set[int]:
    """Return the imports whose failure the script handles itself."""
    guarded: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(_catches_import(handler) for handler in node.handlers):
            guarded |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return guarded


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
