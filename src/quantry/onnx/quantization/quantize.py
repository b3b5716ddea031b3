"""Quantization as one function."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import onnx

from quantry.errors import RecipeError, nearest_spelling
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
    _check("quantize_static", settings)
    quantizer = ModelQuantizer(Config(QuantizationConfig(**settings)))
    return quantizer.quantize_model(model_input, model_output, calibration_data_reader, calibration_data_path)


def quantize_dynamic(
    model_input: ModelInput, model_output: str | os.PathLike[str] | None = None, **settings: Any
) -> onnx.ModelProto | None:
    """Quantize the weights of a model; activations are quantized while it runs, which needs no data.

    Args:
        model_input: The float model: a path or a proto.
        model_output: Where the result goes; None returns it.
        settings: Fields of `QuantizationConfig` by name, such as ``weight_type`` or ``per_channel``.

    Returns:
        The quantized model where ``model_output`` is None, else None.

    Raises:
        UserError: The model or a setting cannot be used; the message says why.
    """
    _check("quantize_dynamic", settings)
    config = QuantizationConfig(**{**settings, "use_dynamic_quant": True})
    return ModelQuantizer(Config(config)).quantize_model(model_input, model_output)


def _check(function: str, settings: Mapping[str, Any]) -> None:
    known = [part.name for part in fields(QuantizationConfig)]
    for name in settings:
        if name not in known:
            raise RecipeError(
                f"{function} takes fields of QuantizationConfig, got {name!r}{nearest_spelling(name, known)}"
            )
