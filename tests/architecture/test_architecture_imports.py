"""The table of docs/architecture.md: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent
GROUND = (
    *("operating_system", "errors", "files", "notebook", "notes", "facts", "recipe"),
    *("memo", "numerics", "graph", "data", "runtime", "execute"),
)
"""The ground floor, lowest first: a room imports only rooms that stand before it."""

STAGES = ("prepare", "observe", "equalize", "plan", "scale", "tune", "emit", "evaluate")
HEAVY = {
    "onnxruntime": {"runtime", "execute", "observe", "evaluate", "tune", "targets"},
    "optuna": {"autosearch"},
    "torch": {"numerics", "runtime", "execute", "tune", "torchfront"},
}
LEAVES = {"cli", "onnx", "ort", "torch", "vai_q_onnx", "compat"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def our_rooms(path: Path) -> set[str]:
    parts = (name.split(".") for name in imported(path) if name.startswith("quantry."))
    rooms = {part[1] for part in parts}
    return {name for name in rooms if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()} - {room(path)}


BASE = set(GROUND)
RUNNING = BASE | set(STAGES) | {"mix", "stages", "pipeline", "targets", "quantization"}
ALLOWED: dict[str, set[str]] = {
    **{name: set(GROUND[:index]) for index, name in enumerate(GROUND)},
    # Tables of facts import nothing. Recipes and the memo are independent of each other and of everything above them.
    "facts": set(),
    "recipe": {"operating_system", "errors", "files", "notebook", "notes", "facts"},
    "memo": {"operating_system", "errors", "files", "notes"},
    **{name: BASE | set(STAGES[:index]) for index, name in enumerate(STAGES)},
    "mix": BASE | set(STAGES) - {"tune"},  # it runs the models that its plans produce
    "demo": {"errors", "evaluate"},
    "targets": BASE | set(STAGES) | {"mix", "pipeline", "convert"},
    "convert": BASE | {"prepare", "plan", "scale", "emit"},
    "testing": RUNNING,
    "stages": BASE | set(STAGES) | {"mix"},
    "pipeline": BASE | set(STAGES) | {"mix", "stages"},
    "autosearch": RUNNING,
    "diagnosis": RUNNING,
    "auto": RUNNING | {"targets", "autosearch", "diagnosis"},
    "report": RUNNING | {"auto", "autosearch", "diagnosis"},
    "torchfront": RUNNING,
}


def allowed(name: str) -> set[str] | None:
    return ALLOWED.get(name)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_imports_only_rooms_upstream_of_it(path: Path) -> None:
    permitted = allowed(room(path))
    if (permitted is not None and path.name != "__init__.py") or (permitted is not None and path.parent != SOURCE):
        assert our_rooms(path) <= permitted


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_library_is_imported_in_its_rooms_only(path: Path) -> None:
    for library, rooms in HEAVY.items():
        if any(name.split(".")[0] == library for name in imported(path)):
            assert room(path) in rooms, f"{library} may be imported in {sorted(rooms)} only"


def test_facades_and_commands_are_imported_by_none() -> None:
    for path in modules():
        # `python -m quantry` is the command itself: nothing imports it.
        if room(path) not in LEAVES | {"__init__", "__main__"}:
            assert not our_rooms(path) & LEAVES, path


def test_import_of_quantry_is_light() -> None:
    code = """
import resource, sys
before = resource.getrusage(resource.RUSAGE_SELF)
import quantry
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
heavy = sorted({"torch", "onnxruntime", "optuna", "onnx", "numpy"} & set(sys.modules))
sys.stdout.write(f"{cpu};{','.join(heavy)}")
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    cpu, heavy = output.split(";")
    assert float(cpu) < 0.3
    assert heavy == ""


def test_native_api_loads_no_heavy_library_until_it_runs() -> None:
    code = """
import sys, quantry
quantry.quantize
sys.stdout.write(",".join({"torch", "onnxruntime", "optuna"} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == ""


def test_tables_of_facts_import_only_the_standard_library() -> None:
    for path in (SOURCE / "facts").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for_type_checkers = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for statement in node.body
            if isinstance(statement, ast.Import)
            for name in (alias.name for alias in statement.names)
        }
        assert {name.split(".")[0] for name in imported(path) - for_type_checkers} <= sys.stdlib_module_names, path
