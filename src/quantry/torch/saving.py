"""`save_params` and `load_params`: a quantized module in a file of torch."""

import os
from pathlib import Path
from typing import Any

from quantry.errors import RecipeError, known_keywords
from quantry.torch.enums import QuantizationMode, check_member


@known_keywords("save_params", {"output_dir": "export_dir"})
def save_params(  # noqa: PLR0913, PLR0917 - the arguments of AMD's function
    model: Any,
    model_type: str,
    args: Any = None,
    kwargs: Any = None,
    export_dir: str | os.PathLike[str] = ".",
    quant_mode: QuantizationMode = QuantizationMode.fx_graph_mode,
    compressed: bool = False,
    reorder: bool = True,
) -> Path:
    """Write a quantized module with its structure to ``<export_dir>/<model_type>_quantized.pth``.

    Args:
        model: A quantized or frozen module, or a model that contains one.
        model_type: Name of the model, for the file name.
        args: Example arguments; the module is called with them once, so that a model that cannot run is not saved.
        kwargs: Example keyword arguments.
        export_dir: The directory; it is created if it is missing.
        quant_mode: Must be ``fx_graph_mode``.
        compressed: Must be False; it is for packed weights of language models.
        reorder: It makes no difference without packed weights.

    Returns:
        The file; AMD's function returns nothing.

    Raises:
        ModelError: There is no quantized module.
    """
    from quantry.torchfront import save_module

    check_member(quant_mode, QuantizationMode, "save_params.quant_mode")
    _refuse_packed(compressed, "save_params")
    del reorder
    path = Path(export_dir) / f"{model_type}_quantized.pth"
    save_module(model, path, tuple(args or ()), dict(kwargs or {}))
    return path


@known_keywords("load_params", {"path": "pth_path"})
def load_params(  # noqa: PLR0913, PLR0917 - the arguments of AMD's function
    model: Any = None,
    json_path: str | os.PathLike[str] = "",
    safetensors_path: str | os.PathLike[str] = "",
    pth_path: str | os.PathLike[str] = "",
    quant_mode: QuantizationMode = QuantizationMode.fx_graph_mode,
    compressed: bool = False,
    reorder: bool = True,
) -> Any:
    """Return a module that `save_params` wrote.

    The file holds Python objects: load only files that you trust.

    Args:
        model: Must be None: the file has the structure too.
        json_path: Must be empty: it is for language models.
        safetensors_path: Must be empty: it is for language models.
        pth_path: The file.
        quant_mode: Must be ``fx_graph_mode``.
        compressed: Must be False; it is for packed weights of language models.
        reorder: It makes no difference without packed weights.

    Raises:
        RecipeError: An argument for another kind of file is given.
        ModelError: There is no such file.
    """
    from quantry.torchfront import load_module

    check_member(quant_mode, QuantizationMode, "load_params.quant_mode")
    _refuse_packed(compressed, "load_params")
    del reorder
    for name, value in (("model", model), ("json_path", json_path), ("safetensors_path", safetensors_path)):
        if value not in (None, ""):
            raise RecipeError(f"{name} must be omitted, because a .pth file has the whole module, got {value!r}")
    return load_module(Path(pth_path))


def _refuse_packed(compressed: bool, function: str) -> None:
    if compressed:
        raise RecipeError(f"{function}.compressed must be False, because weights are not packed, got True")
