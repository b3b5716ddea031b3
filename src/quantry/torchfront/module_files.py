"""Quantized modules in files of torch, with their structure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantry.errors import ModelError
from quantry.files import new_file
from quantry.torchfront.quantized_module import QuantizedModule


def save_module(model: nn.Module, path: Path, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Write a module that is or contains a quantized one.

    Args:
        model: The module.
        path: The file; its folder is created if it is missing.
        arguments: The module is called with these once, so that a model that cannot run is not saved; () for no call.
        keywords: Keyword arguments of that call.

    Raises:
        ModelError: There is no quantized module.
    """
    if not isinstance(model, nn.Module) or not any(
        isinstance(submodule, QuantizedModule) for submodule in model.modules()
    ):
        raise ModelError(f"a model to save must be or contain a quantized module, got {type(model).__name__}")
    if arguments or keywords:
        with torch.no_grad():
            model(*arguments, **keywords)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        torch.save(model, file)


def load_module(path: Path) -> nn.Module:
    """Return a module that `save_module` wrote. The file holds Python objects: load only files that you trust.

    Raises:
        ModelError: There is no such file.
    """
    if not path.is_file():
        raise ModelError(f"a module must be in a file that save_params wrote, got {str(path)!r}")
    return torch.load(path, weights_only=False)
