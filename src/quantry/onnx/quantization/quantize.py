"""Quantization as one function."""

import os
from dataclasses import fields
from typing import Any, NoReturn

import onnx

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options import FIELDS
from quantry.onnx.quantization.api import ModelInput, ModelQuantizer
from quantry.onnx.quantization.config.config import Config, QuantizationConfig


def quantize_static(
    model_input: ModelInput,
    model_output: str | os.PathLike[str] | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> onnx.ModelProto | None:
    """Quantize a model with scales found from calibration data.

    Args:
        model_input: The float model: a path or a proto.
        model_output: Where the result goes; None returns it.
        calibration_data_reader: An object with ``get_next()``; None uses one random sample, with a warning.
        calibration_data_path: A folder of ``.npy`` files instead.
        settings: Fields of `QuantizationConfig` by name.

    Returns:
        The quantized model where ``model_output`` is None, else None.

    Raises:
        UserError: The model, the data or a setting cannot be used; the message says why.
    """
    known = [part.name for part in fields(QuantizationConfig)]
    for name in settings:
        if name not in known:
            raise RecipeError(
                f"quantize_static takes fields of QuantizationConfig, got {name!r}{nearest_spelling(name, known)}"
            )
    quantizer = ModelQuantizer(Config(QuantizationConfig(**settings)))
    return quantizer.quantize_model(model_input, model_output, calibration_data_reader, calibration_data_path)


def quantize_dynamic(model_input: ModelInput, *arguments: Any, **settings: Any) -> NoReturn:
    """Say that scales cannot be found while the model runs, and what to use instead.

    Args:
        model_input: The float model.
        arguments: Not looked at.
        settings: Not looked at.

    Raises:
        RecipeError: Always, so far.
    """
    del model_input, arguments, settings
    raise RecipeError(f"quantize_dynamic cannot be used: {FIELDS['use_dynamic_quant'].refused}")
