"""Imports of AMD's packages lead to ours while a script runs."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import quantry

ROOTS = ("quark", "vai_q_onnx")
"""Packages whose imports are mapped."""

MAPPED = {"quark.onnx": "quantry.onnx", "quark.torch": "quantry.torch", "vai_q_onnx": "quantry.vai_q_onnx"}
"""Their packages, and ours."""

_FLAT = (
    "quark.torch",
    "quark.torch.export",
    "quark.torch.export.api",
    "quark.torch.export.config",
    "quark.torch.export.config.config",
    "quark.torch.quantization",
    "quark.torch.quantization.api",
    "quark.torch.quantization.config",
    "quark.torch.quantization.config.config",
    "quark.torch.quantization.config.type",
    "quark.torch.quantization.observer",
    "quark.torch.quantization.observer.observer",
)
"""Modules of AMD's whose names are all in our one package, of which each gets a copy: where AMD has a module
``export``, ours has a function of that name."""

_LOGS = ("quark.shares.utils.log", "quark.common.utils.log")


def our_name(module: str) -> str | None:
    """Return the name of our module for one of AMD's, or None where none of our packages is meant.

    Example:
        >>> our_name("quark.onnx.quantization.config")
        'quantry.onnx.quantization.config'
        >>> our_name("quark.shares.utils.log") is None
        True
    """
    for theirs, ours in MAPPED.items():
        if module == theirs or module.startswith(f"{theirs}."):
            return ours + module.removeprefix(theirs)
    return None


def our_module(module: str) -> ModuleType | None:
    """Return our module for one of AMD's, or None where there is none.

    Args:
        module: The name of AMD's module.

    Raises:
        ImportError: Ours is there and cannot be imported, for instance because torch is missing.
    """
    name = our_name(module)
    if name is None:
        return _made(module)
    if module in _FLAT:
        return _flattened(module)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _flattened(module: str) -> ModuleType:
    """Return a module with all names of our package, in the place of AMD's or one inside it."""
    ours = importlib.import_module(MAPPED["quark.torch"])
    made = ModuleType(module, ours.__doc__)
    made.__path__ = []
    made.__all__ = list(ours.__all__)  # type: ignore[attr-defined]
    for name in ours.__all__:
        setattr(made, name, getattr(ours, name))
    return made


def _made(module: str) -> ModuleType | None:
    """Return a module that has no counterpart: a package on the way to one, or the loggers of AMD's scripts."""
    if module in _LOGS:
        made = ModuleType(module, "Loggers of the standard library under AMD's name.")
        made.ScreenLogger = logging.getLogger  # type: ignore[attr-defined]
        return made
    if not any(name == module or name.startswith(f"{module}.") for name in (*MAPPED, *_LOGS)):
        return None
    package = ModuleType(module, "On the way to modules that are mapped.")
    package.__path__ = []
    package.__version__ = quantry.__version__  # type: ignore[attr-defined]
    return package


class _Ours(Loader):
    """Hands out one of our modules, which stays what it is under its own name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return our module."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back what the import system has overwritten; it has run already."""
        if self._spec is not None:
            module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds AMD's modules in ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from, or None where it is none of AMD's."""
        del path, target
        if fullname.partition(".")[0] not in ROOTS:
            return None
        module = our_module(fullname)
        if module is None:
            raise ModuleNotFoundError(f"quantry has nothing in the place of {fullname!r}", name=fullname)
        return importlib.util.spec_from_loader(
            fullname, _Ours(module), origin=f"quantry compat: {module.__name__}", is_package=hasattr(module, "__path__")
        )


@contextmanager
def mapped_imports() -> Iterator[None]:
    """Let imports of ``quark.onnx``, ``quark.torch`` and ``vai_q_onnx`` lead to ours.

    Installed packages of these names are not touched and are back afterwards.

    Example:
        >>> with mapped_imports():
        ...     from quark.onnx import ModelQuantizer
        >>> ModelQuantizer.__module__
        'quantry.onnx.quantization.api'
    """
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ROOTS}
    for name in before:
        del sys.modules[name]
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
            del sys.modules[name]
        sys.modules.update(before)
