"""`__all__` tells the truth, and enumerations work in every supported Python."""

import ast
import importlib
from pathlib import Path

import pytest

import quantry

SOURCE = Path(quantry.__file__).parent
PACKAGES = sorted(".".join(("quantry", *path.relative_to(SOURCE).parent.parts)) for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist_are_sorted_and_unique(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])
    assert len(set(exported)) == len(exported)
    for entry in exported:
        assert hasattr(package, entry), f"{name}.{entry} is exported but missing"


@pytest.mark.parametrize("name", [name for name in PACKAGES if name.count(".") == 1])
def test_public_names_of_a_room_are_exported(name: str) -> None:
    package = importlib.import_module(name)
    exported = set(getattr(package, "__all__", []))
    public = {
        entry
        for entry, value in vars(package).items()
        if not entry.startswith("_") and getattr(value, "__module__", "").startswith("quantry")
    }
    assert public <= exported | {"errors"}


def test_every_package_says_what_it_is() -> None:
    for name in PACKAGES:
        assert importlib.import_module(name).__doc__, name


def test_package_ships_its_type_information() -> None:
    assert (SOURCE / "py.typed").is_file()


def test_no_enumeration_has_an_empty_tuple() -> None:
    """Python 3.11.0 to 3.11.3, which Debian 12 has, replaces it by an object."""
    wrong = [
        f"{path}:{part.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases)
        for part in node.body
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Tuple) and not part.value.elts
    ]
    assert wrong == []
