"""The arguments of AutoSearch in the orders and under the names of both generations."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from quantry.errors import RecipeError, nearest_spelling

_NEW_ORDER = (
    *("model_input", "config", "auto_search_config", "eval_dataloader", "calibration_data_reader"),
    "calibration_data_path",
)
_OLD_ORDER = ("config", "auto_search_config", "model_input", "calibration_data_reader", "calibration_data_path")
_OTHER_NAMES = {
    "quantization_config": "config",
    "quant_config": "config",
    "float_onnx_model_path": "model_input",
    "input_model_path": "model_input",
    "model": "model_input",
    "data_reader": "calibration_data_reader",
    "calib_data_reader": "calibration_data_reader",
    "eval_data_reader": "eval_dataloader",
}


def search_arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of AutoSearch under the names of AMD Quark 0.13.

    A model before the configuration is the order of 0.13, a configuration first the order of the documents.

    Raises:
        RecipeError: There are too many, one is unknown or given twice, or the model or the configuration is missing.
    """
    order = _NEW_ORDER if positional and _is_model(positional[0]) else _OLD_ORDER
    if len(positional) > len(order):
        raise RecipeError(f"AutoSearch takes {len(order)} arguments ({', '.join(order)}), got {len(positional)}")
    given = dict(zip(order, positional, strict=False))
    for name, value in keywords.items():
        meant = _OTHER_NAMES.get(name, name)
        if meant not in _NEW_ORDER:
            raise RecipeError(
                f"AutoSearch must be given known arguments, got {name!r}"
                f"{nearest_spelling(name, (*_NEW_ORDER, *_OTHER_NAMES))}"
            )
        if meant in given:
            raise RecipeError(f"AutoSearch must be given {meant!r} once, got it twice")
        given[meant] = value
    for name in ("model_input", "config"):
        if given.get(name) is None:
            raise RecipeError(f"AutoSearch needs {name!r}, got none; in {sorted(given)}")
    return {name: given.get(name) for name in _NEW_ORDER}


def _is_model(value: object) -> bool:
    return isinstance(value, str | os.PathLike | onnx.ModelProto)
