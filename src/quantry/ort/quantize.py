"""`quantize_static`, `quantize_dynamic` and `quantize` with onnxruntime's signatures."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from quantry.errors import RecipeError, known_keywords
from quantry.files import write_file
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.enums import (
    METHODS,
    AnyFormat,
    AnyMethod,
    AnyType,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    own_member,
)
from quantry.onnx.half_models import HalfReader, is_half, with_half_ends, write_as_half
from quantry.onnx.quantizer import ModelInput, job_result, save_result
from quantry.onnx.translate import Job, translate
from quantry.ort.calibration import is_partly_quantized, store_ranges, with_stored_ranges
from quantry.ort.files import write_as_onnxruntime, write_without_saturated_bounds
from quantry.ort.options import own_options, own_type
from quantry.ort.stored_parameters import unquantized, with_stored
from quantry.recipe import Qdq, QOperator

_LOG = logging.getLogger("quantry")

_NORMALIZATIONS = ("InstanceNormalization", "LayerNormalization")
_EXTRA = ("TopK", *_NORMALIZATIONS)
"""Operators around which onnxruntime writes pairs although quantry's rules leave them, or their constants, float."""

_AFTER_QUANTIZED = ("Clip", "Relu", "TopK", "Where")
"""Operators that onnxruntime leaves float after a float tensor, unless ForceQuantizeNoInputCheck is set."""


@dataclass
class StaticQuantConfig:
    """Arguments of `quantize_static` in one object; onnxruntime's class of that name is accepted too.

    Attributes:
        calibration_data_reader: An object with ``get_next()``.
        calibrate_method: The calibration method.
        quant_format: The format.
        activation_type: Type of activations.
        weight_type: Type of weights.
        op_types_to_quantize: Quantize only these operator types.
        nodes_to_quantize: Quantize only these nodes.
        nodes_to_exclude: Do not quantize these nodes.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        use_external_data_format: Store weights outside the model file.
        calibration_providers: onnxruntime's execution providers for calibration.
        extra_options: Further options by name.
        calibration_cache_path: File in which ranges are kept.
    """

    calibration_data_reader: Any = None
    calibrate_method: AnyMethod = CalibrationMethod.MinMax
    quant_format: AnyFormat = QuantFormat.QDQ
    activation_type: AnyType = QuantType.QInt8
    weight_type: AnyType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Sequence[str] | None = None
    extra_options: Mapping[str, Any] | None = None
    calibration_cache_path: str | os.PathLike[str] | None = None


@dataclass
class DynamicQuantConfig:
    """Arguments of `quantize_dynamic` in one object; onnxruntime's class of that name is accepted too.

    Attributes:
        weight_type: Type of weights.
        op_types_to_quantize: Quantize only these operator types.
        nodes_to_quantize: Quantize only these nodes.
        nodes_to_exclude: Do not quantize these nodes.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        use_external_data_format: Store weights outside the model file.
        extra_options: Further options by name.
    """

    weight_type: AnyType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


@known_keywords("quantry.ort.quantize_static")
def quantize_static(  # noqa: PLR0913, PLR0917 - onnxruntime's arguments
    model_input: ModelInput,
    model_output: str | os.PathLike[str],
    calibration_data_reader: Any = None,
    quant_format: AnyFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: AnyType = QuantType.QInt8,
    weight_type: AnyType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: AnyMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
) -> None:
    """Quantize a model with scales from calibration data.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        calibration_data_reader: An object with ``get_next()``; None uses one random sample, with a warning.
        quant_format: The format.
        op_types_to_quantize: Quantize only these operator types; None for all that have a rule.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        activation_type: Type of activations.
        weight_type: Type of weights.
        nodes_to_quantize: Quantize only these nodes.
        nodes_to_exclude: Do not quantize these nodes.
        use_external_data_format: Store weights outside the model file.
        calibrate_method: The calibration method.
        calibration_providers: onnxruntime's execution providers for calibration.
        extra_options: Further options by name, see docs/reference/options.md.
        calibration_cache_path: File in which ranges are kept, in the format of onnxruntime's `save_tensors_data`.

    Raises:
        UserError: The model, the data or an argument cannot be used; the message says why.
    """
    weight_type = own_type(weight_type)
    # onnxruntime's own members compare unequal to ours.
    if _name(quant_format) == "QOperator" and "QFLOAT8E4M3FN" in (_name(own_type(activation_type)), _name(weight_type)):
        _LOG.warning("Q/DQ pairs are written: there are no operators on 8-bit floats")
        quant_format = QuantFormat.QDQ
    if per_channel and (_name(quant_format), _name(weight_type)) == ("QOperator", "QUInt8"):
        _LOG.warning("weights are int8: integer convolutions have one zero point for all channels")
        weight_type = QuantType.QInt8
    config = QuantizationConfig(
        calibrate_method=calibrate_method,
        quant_format=quant_format,
        activation_type=own_type(activation_type),
        weight_type=weight_type,
        op_types_to_quantize=list(op_types_to_quantize or ()),
        extra_op_types_to_quantize=_extra(op_types_to_quantize),
        nodes_to_quantize=list(nodes_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        execution_providers=list(calibration_providers or ["CPUExecutionProvider"]),
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=use_external_data_format,
        include_sq=bool((extra_options or {}).get("SmoothQuant")),
        extra_options=own_options(extra_options, calibrate_method),
    )
    keeps = bool((extra_options or {}).get("QDQKeepRemovableActivations"))
    cache = None if calibration_cache_path is None else Path(calibration_cache_path)
    _run(config, model_input, Path(model_output), calibration_data_reader, cache, keeps_bounds=keeps)


@known_keywords("quantry.ort.quantize_dynamic")
def quantize_dynamic(  # noqa: PLR0913, PLR0917 - onnxruntime's arguments
    model_input: ModelInput,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: AnyType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Quantize the weights of a model; activations are quantized at run time, so no data is needed.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        op_types_to_quantize: Quantize only these operator types.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        weight_type: Type of weights.
        nodes_to_quantize: Quantize only these nodes.
        nodes_to_exclude: Do not quantize these nodes.
        use_external_data_format: Store weights outside the model file.
        extra_options: Further options by name, see docs/reference/options.md.

    Raises:
        UserError: The model or an argument cannot be used; the message says why.
    """
    config = QuantizationConfig(
        weight_type=own_type(weight_type),
        op_types_to_quantize=list(op_types_to_quantize or ()),
        nodes_to_quantize=list(nodes_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=use_external_data_format,
        use_dynamic_quant=True,
        extra_op_types_to_quantize=["Attention", "EmbedLayerNormalization"] if op_types_to_quantize is None else [],
        extra_options=own_options(extra_options),
    )
    _run(config, model_input, Path(model_output))


@known_keywords("quantry.ort.quantize")
def quantize(model_input: ModelInput, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    """Quantize a model with the arguments in an object.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        quant_config: A `StaticQuantConfig` or a `DynamicQuantConfig`, of this package or of onnxruntime.

    Raises:
        RecipeError: It is neither.
    """
    functions = {"StaticQuantConfig": quantize_static, "DynamicQuantConfig": quantize_dynamic}
    function: Any = functions.get(type(quant_config).__name__)
    if function is None:
        raise RecipeError(
            f"quant_config must be a StaticQuantConfig or a DynamicQuantConfig, got {type(quant_config).__name__}"
        )
    kind = StaticQuantConfig if function is quantize_static else DynamicQuantConfig
    known = {name: getattr(quant_config, name) for name in kind.__dataclass_fields__ if hasattr(quant_config, name)}
    function(model_input, model_output, **known)


def _extra(chosen: Sequence[str] | None) -> list[str]:
    return list(_EXTRA) if chosen is None else [name for name in chosen if name in _EXTRA]


def _name(member: Any) -> str:
    return str(getattr(member, "name", member))


def _run(
    config: QuantizationConfig,
    model: ModelInput,
    output: Path,
    reader: Any = None,
    cache: Path | None = None,
    *,
    keeps_bounds: bool = True,
) -> None:
    """Quantize a model; what onnxruntime accepts and quantry's pipeline does not is brought into its form first."""
    original = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    config = replace(config, nodes_to_exclude=_known(config.nodes_to_exclude, original))
    stored = unquantized(model) if is_partly_quantized(original) else None
    half = is_half(original)
    if half:
        config = replace(config, convert_fp16_to_fp32=True)
        reader = None if reader is None else HalfReader(reader)
    job = _placed_as_in_onnxruntime(translate(config))
    if stored is not None:
        job = with_stored(job, stored)
    method = own_member(config.calibrate_method, METHODS, "calibrate_method").name
    if not config.use_dynamic_quant:
        job, reader = with_stored_ranges(job, cache, method, reader)
    result = job_result(job, model if stored is None else stored.model, reader)
    if cache is not None:
        store_ranges(result, cache, method)
    save_result(result, output, job.draft)
    has_pairs = isinstance(result.recipe.emit.format, Qdq)
    if has_pairs and not keeps_bounds:
        write_without_saturated_bounds(output)
    if half and has_pairs:
        write_as_half(output)
    elif half:
        # The integer operators have float32 scales only.
        write_file(output, with_half_ends(onnx.load(output), original).SerializeToString())
    names = {} if stored is None else {weight.tensor: weight.names for weight in stored.weights}
    write_as_onnxruntime(output, result.plan, names)


def _placed_as_in_onnxruntime(job: Job) -> Job:
    """Return the job in which pairs stand where onnxruntime's kernels need them.

    Some operators are quantized only after quantized ones. A Relu after symmetric pairs cannot be removed, and
    onnxruntime computes a Conv with integers only if a QuantizeLinear follows it directly, so the tensor between the
    two is quantized as well.
    """
    plan = job.recipe.plan
    integer = isinstance(job.recipe.emit.format, QOperator)
    names = (*_AFTER_QUANTIZED, "GlobalAveragePool") if integer else _AFTER_QUANTIZED
    fused = (
        () if plan.activation.symmetric and plan.activation.dtype.is_integer and not integer else plan.fused_activations
    )
    plan = replace(plan, pass_through=names, fused_activations=fused)
    return replace(job, recipe=replace(job.recipe, plan=plan))


def _known(names: Sequence[str], model: onnx.ModelProto) -> list[str]:
    """Return the names of nodes that a model has; onnxruntime ignores others."""
    known = {name for node in model.graph.node for name in (node.name, *node.output)}
    found = [name for name in names if name in known]
    for name in names:
        if name not in known:
            _LOG.warning("nodes_to_exclude has %r, which is no node of the model", name)
    return found
