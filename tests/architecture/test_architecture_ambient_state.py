"""No stage reads a ContextVar, a global that changes, or the environment: no key would name it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import quantry

ROOT = Path(quantry.__file__).parent

ALLOWED = {
    "memo._stage.checkpoint": "stores under the key of the stage that runs",
    "runtime.progress": "shows progress and changes no result",
    "runtime.threads": "threads change how long a stage takes, not its result",
    "numerics.kernels.loaded": "the build of the kernels is part of every key, and all levels give the same bytes",
}
"""Functions and modules that may, and why the law of the store holds all the same."""


@cache
def _trees() -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in ROOT.rglob("*.py")
    }


class _Index:
    """Functions and classes of the package, and what each mentions."""

    def __init__(self) -> None:
        self.bodies: dict[str, ast.AST] = {}
        self.owner: dict[str, str] = {}
        self.names: dict[str, dict[str, str]] = {}
        self.stages: list[str] = []
        self.changing: dict[str, set[str]] = defaultdict(set)
        for module, tree in _trees().items():
            self.names[module] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quantry"):
                    origin = (node.module or "").removeprefix("quantry").lstrip(".")
                    for alias in node.names:
                        self.names[module][alias.asname or alias.name] = f"{origin}.{alias.name}"
                elif isinstance(node, ast.Global):
                    self.changing[module].update(node.names)
            self._define(module, tree.body, module, None)

    def _define(self, module: str, body: list[ast.stmt], scope: str, owner: str | None) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                name = f"{scope}.{node.name}"
                self.bodies[name] = node
                if owner is None:
                    self.names[module][node.name] = name
                else:
                    self.owner[name] = owner
                decorators = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
                if any(isinstance(one, ast.Name) and one.id == "stage" for one in decorators):
                    self.stages.append(name)
            elif isinstance(node, ast.ClassDef):
                name = f"{scope}.{node.name}"
                self.bodies[name] = ast.Module([*node.bases], [])  # type: ignore[list-item]
                self.names[module][node.name] = name
                self._define(module, node.body, name, name)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and owner is None and _is_context_variable(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.changing[module].update(target.id for target in targets if isinstance(target, ast.Name))

    def resolved(self, name: str) -> str:
        """Follow re-exports to where a name is defined."""
        for _ in range(4):
            module, _, last = name.rpartition(".")
            if name in self.bodies or self.names.get(module, {}).get(last, name) == name:
                break
            name = self.names[module][last]
        return name

    def reached(self, start: str) -> Iterator[tuple[str, ...]]:
        """Yield the path to every function that a stage may call."""
        seen: set[str] = {start}
        waiting: list[tuple[str, ...]] = [(start,)]
        while waiting:
            path = waiting.pop()
            yield path
            for name in self._mentioned(path[-1]):
                if name in self.bodies and name not in seen:
                    seen.add(name)
                    waiting.append((*path, name))

    def _mentioned(self, function: str) -> Iterator[str]:
        """Yield functions and classes by name, and methods of ``self`` and of parameters, whose class is annotated."""
        module, body = self.module_of(function), self.bodies[function]
        classes = {"self": self.owner.get(function, "")}
        if isinstance(body, ast.FunctionDef):
            for parameter in (*body.args.args, *body.args.kwonlyargs):
                annotation = ast.unparse(parameter.annotation).strip("\"'") if parameter.annotation else ""
                classes.setdefault(parameter.arg, self.resolved(self.names[module].get(annotation, "")))
        for node in ast.walk(body):
            if isinstance(node, ast.Name):
                name = self.resolved(self.names[module].get(node.id, ""))
                yield name
                yield f"{name}.__init__"
                yield f"{name}.__post_init__"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield from (f"{base}.{node.attr}" for base in self._with_bases(classes.get(node.value.id, "")))

    def _with_bases(self, name: str) -> Iterator[str]:
        if name in self.bodies:
            yield name
            for base in getattr(self.bodies[name], "body", ()):
                if isinstance(base, ast.Name):
                    yield from self._with_bases(self.resolved(self.names[self.module_of(name)].get(base.id, "")))

    def module_of(self, function: str) -> str:
        while function and function not in self.names:
            function = function.rpartition(".")[0]
        return function

    def ambient(self, function: str) -> str | None:
        """Return what a function reads that no argument names."""
        changing = self.changing[self.module_of(function)]
        for node in ast.walk(self.bodies[function]):
            if isinstance(node, ast.Name) and node.id in changing:
                return node.id
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                return f"os.{node.attr}"
        return None


def _is_context_variable(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "ContextVar"


def _is_allowed(function: str) -> bool:
    return any(f"{function}.".startswith(f"{allowed}.") for allowed in ALLOWED)


def test_stages_read_no_ambient_state() -> None:
    index = _Index()
    assert len(index.stages) > 20
    wrong = {
        f"{' -> '.join(path)} reads {ambient}"
        for start in index.stages
        for path in index.reached(start)
        if (ambient := index.ambient(path[-1])) and not _is_allowed(path[-1])
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_search_for_ambient_state_finds_front_doors() -> None:
    index = _Index()
    assert index.ambient("evaluate.arithmetic.arithmetic_in_force") == "_IN_FORCE"
    doors = list(index.reached("evaluate.tasks.task_evaluator.run_model"))
    assert any(path[-1] == "evaluate.arithmetic.arithmetic_in_force" for path in doors)
