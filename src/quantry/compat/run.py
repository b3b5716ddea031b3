"""Runs scripts for AMD Quark and vai_q_onnx: their imports resolve to quantry's facade packages."""

import importlib
import importlib.util
import logging
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.deployment import NO_LIBRARY, skip_library

ROOTS = ("quark", "vai_q_onnx")
"""Top-level packages whose imports are redirected."""

FACADES = {"quark.onnx": "quantry.onnx", "quark.torch": "quantry.torch", "vai_q_onnx": "quantry.vai_q_onnx"}
"""AMD's packages and the facade for each."""

QUARK_VERSION = "0.13.0"
"""The version of AMD Quark whose names the facades have; scripts compare ``quark.__version__`` with it."""

_LOGS = ("quark.shares.utils.log", "quark.common.utils.log")
_EXPORT = ("quantry.torch", ("export_for_training",))
_OTHERS = {"quark.common.utils.import_utils": _EXPORT, "quark.shares.utils.import_utils": _EXPORT}
"""Modules outside the facades: the package that has their names, and the names."""


def our_name(module: str) -> str | None:
    """Return the facade module for one of AMD's modules, or None if no facade covers it.

    Example:
        >>> our_name("quark.onnx.quantization.config")
        'quantry.onnx.quantization.config'
        >>> our_name("quark.shares.utils.log") is None
        True
    """
    for theirs, ours in FACADES.items():
        if module == theirs or module.startswith(f"{theirs}."):
            return ours + module.removeprefix(theirs)
    return None


def our_module(module: str) -> ModuleType | None:
    """Return the module that replaces one of AMD's modules, or None if there is none.

    Args:
        module: The name of AMD's module.

    Raises:
        ImportError: The facade exists but cannot be imported, for example because torch is missing.
    """
    name = our_name(module)
    if name is None:
        return _stand_in(module)
    try:
        ours = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
    if module.startswith("quark.torch"):
        return _torch_copy(module, ours)
    return _onnx_copy(module, ours) if module.startswith("quark.onnx.") else ours


def _onnx_copy(module: str, original: ModuleType) -> ModuleType:
    """Return a module with the names of a facade's module, and with every name of `quantry.onnx`.

    AMD's modules import from each other and names have moved between versions, so scripts import
    ``Int8Spec`` from ``config.config`` as well as from ``config.spec``.
    """
    ours = importlib.import_module(FACADES["quark.onnx"])
    copied = ModuleType(module, original.__doc__)
    copied.__dict__.update({name: value for name, value in vars(original).items() if not name.startswith("__")})
    if hasattr(original, "__path__"):
        copied.__path__ = []
    copied.__all__ = getattr(original, "__all__", [])  # type: ignore[attr-defined]

    def other_name(name: str) -> Any:
        value = getattr(original, name, None)
        if value is None and not name.startswith("_"):
            value = getattr(ours, name, None)
        if value is None or (isinstance(value, ModuleType) and not hasattr(original, name)):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return value

    copied.__getattr__ = other_name  # type: ignore[method-assign]
    return copied


def _torch_copy(module: str, original: ModuleType) -> ModuleType:
    """Return a new module with every name of `quantry.torch`, and those that only the module of that path has.

    AMD has a module ``quark.torch.export``; `quantry.torch.export` is a function. Importing AMD's submodule sets the
    attribute ``export`` of its parent, so scripts get a copy and the function of our package stays.
    """
    ours = importlib.import_module(FACADES["quark.torch"])
    copied = ModuleType(module, ours.__doc__)
    copied.__path__ = []
    missing = [name for name in getattr(original, "__all__", ()) if name not in ours.__all__]
    copied.__all__ = [*ours.__all__, *missing]  # type: ignore[attr-defined]
    for name in ours.__all__:
        setattr(copied, name, getattr(ours, name))
    for name in missing:
        setattr(copied, name, getattr(original, name))
    return copied


def _stand_in(module: str) -> ModuleType | None:
    """Return a module for a package above the facades, or for the loggers that AMD's scripts use."""
    if module in _LOGS:
        log = ModuleType(module, "Loggers of the standard library under AMD's name.")
        log.ScreenLogger = logging.getLogger  # type: ignore[attr-defined]
        log.log_errors = _unchanged  # type: ignore[attr-defined]
        return log
    if module in _OTHERS:
        facade, names = _OTHERS[module]
        ours = importlib.import_module(facade)
        module_copy = ModuleType(module, f"Names of {facade} under AMD's path.")
        for name in names:
            setattr(module_copy, name, getattr(ours, name))
        return module_copy
    if not any(name == module or name.startswith(f"{module}.") for name in (*FACADES, *_LOGS, *_OTHERS)):
        return None
    package = ModuleType(module, "Parent package of redirected modules.")
    package.__path__ = []
    package.__version__ = QUARK_VERSION  # type: ignore[attr-defined]
    return package


def _unchanged(function: Any) -> Any:
    """Return a function as it is: AMD's decorator of this place logs errors before it raises them."""
    return function


class _LoadedModule(Loader):
    """Loads a module that has already been imported under its own name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system has just replaced."""
        if self._spec is not None:
            module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds the facade module for each of AMD's modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the replacement, or None if the module is not AMD's."""
        del path, target
        if fullname.partition(".")[0] not in ROOTS:
            return None
        module = our_module(fullname)
        if module is None:
            raise ModuleNotFoundError(f"quantry has no replacement for {fullname!r}", name=fullname)
        if fullname in ("vai_q_onnx", "quark.onnx"):
            # AMD's packages import it, and scripts that write only `import onnxruntime` use it under that name.
            importlib.import_module("onnxruntime.quantization.shape_inference")
        return importlib.util.spec_from_loader(
            fullname,
            _LoadedModule(module),
            origin=f"quantry compat: {module.__name__}",
            is_package=hasattr(module, "__path__"),
        )


@contextmanager
def mapped_imports() -> Iterator[None]:
    """Redirect imports of ``quark.onnx``, ``quark.torch`` and ``vai_q_onnx`` to the facades.

    Installed packages of these names are hidden meanwhile and restored afterwards.

    Example:
        >>> with mapped_imports():
        ...     from quark.onnx import ModelQuantizer
        >>> ModelQuantizer.__module__
        'quantry.onnx.quantizer'
    """
    replaced = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ROOTS}
    for name in replaced:
        del sys.modules[name]
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
            del sys.modules[name]
        sys.modules.update(replaced)


def run_script(script: Path, arguments: Sequence[str] = ()) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` would.

    Args:
        script: The script.
        arguments: Its command line, ``sys.argv[1:]``.

    Raises:
        SystemExit: The script exited by itself.
    """
    with _process([str(script), *arguments], script.resolve().parent):
        runpy.run_path(str(script), run_name="__main__")


def run_module(module: str, arguments: Sequence[str] = ()) -> None:
    """Run a module as ``python -m MODULE ARGUMENTS`` would.

    Args:
        module: One of AMD's tools, such as ``quark.onnx.tools.remove_qdq``, or any module that uses AMD's packages.
        arguments: Its command line, ``sys.argv[1:]``.

    Raises:
        RecipeError: There is no such tool or module.
        SystemExit: The module exited by itself.
    """
    with _process([module, *arguments], Path.cwd()):
        if module.partition(".")[0] in ROOTS:
            ours = our_module(module.removesuffix(".py"))
            if ours is None or not hasattr(ours, "main"):
                raise RecipeError(f"MODULE must be a tool that quantry has, got {module}; see docs/migration.md")
            ours.main(list(arguments))
            return
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise
            raise RecipeError(f"MODULE must be installed or in the current folder, got {module}") from error


@contextmanager
def _process(arguments: list[str], folder: Path) -> Iterator[None]:
    """Set the command line and the first folder of imports for the duration of a run, with AMD's imports mapped."""
    state = sys.argv, list(sys.path)
    sys.argv = arguments
    sys.path.insert(0, str(folder))
    try:
        with mapped_imports(), _sessions_without_library():
            yield
    finally:
        sys.argv, sys.path[:] = state


@contextmanager
def _sessions_without_library() -> Iterator[None]:
    """Make onnxruntime ignore the custom operator library that scripts register; quantry's models need none."""
    # Imported by name: only runtime/ may import onnxruntime, and this patches what the script itself calls.
    runtime: Any = importlib.import_module("onnxruntime")
    original = runtime.SessionOptions

    class SessionOptions(original):  # type: ignore[misc, valid-type]
        """Session options that skip `NO_LIBRARY`."""

        def register_custom_ops_library(self, path: str) -> None:
            """Register a library, unless it is the placeholder for none."""
            if path != NO_LIBRARY:
                super().register_custom_ops_library(path)

    runtime.SessionOptions = SessionOptions
    skip_library(skipped=True)
    try:
        yield
    finally:
        runtime.SessionOptions = original
        skip_library(skipped=False)
