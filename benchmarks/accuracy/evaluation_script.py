"""Loads the evaluation script of a shared model, instead of repeating it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_script(path: Path) -> ModuleType:
    """Return the script as a module. It changes ``sys.path``, so load one script in a process only."""
    name = f"shared_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def input_name(model: Path) -> str:
    """Return the name of a model's first input."""
    import onnx

    return str(onnx.load(model, load_external_data=False).graph.input[0].name)
