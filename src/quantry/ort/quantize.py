"""`quantize_static`, `quantize_dynamic` and `quantize` with onnxruntime's signatures."""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
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
from quantry.recipe.checked import field_docs
from quantry.recipe.option_fields import parameters_of, with_parameters

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
        calibration_data_reader: An object with ``get_next()``; None uses one random sample, with a warning.
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
        extra_options: Further options by name, see docs/reference/options.md.
        calibration_cache_path: File in which ranges are kept, in the format of onnxruntime's `save_tensors_data`.
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
        extra_options: Further options by name, see docs/reference/options.md.
    """

    weight_type: AnyType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


# In the order of onnxruntime's signatures, which is not that of its classes.
_STATIC_ORDER = (
    *("calibration_data_reader", "quant_format", "op_types_to_quantize", "per_channel", "reduce_range"),
    *("activation_type", "weight_type", "nodes_to_quantize", "nodes_to_exclude", "use_external_data_format"),
    *("calibrate_method", "calibration_providers", "extra_options", "calibration_cache_path"),
)
_DYNAMIC_ORDER = (
    *("op_types_to_quantize", "per_channel", "reduce_range", "weight_type", "nodes_to_quantize", "nodes_to_exclude"),
    *("use_external_data_format", "extra_options"),
)


def _arguments_of(cls: type, order: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of a function whose arguments are the fields of a class, by position or by name."""
    parameters, docs = parameters_of(cls), field_docs(cls)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        complete = with_parameters([parameters[name] for name in order], {name: docs[name] for name in order})(function)
        signature = inspect.signature(complete)

        @functools.wraps(complete)
        def bound(*arguments: Any, **keywords: Any) -> None:
            complete(**signature.bind(*arguments, **keywords).arguments)

        return bound

    return decorate


@known_keywords("quantry.ort.quantize_static")
@_arguments_of(StaticQuantConfig, _STATIC_ORDER)
def quantize_static(model_input: ModelInput, model_output: str | os.PathLike[str], **options: Any) -> None:
    """Quantize a model with scales from calibration data.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        **options: The fields of `StaticQuantConfig`.

    Raises:
        UserError: The model, the data or an argument cannot be used; the message says why.
    """
    static = StaticQuantConfig(**options)
    settings = _common_fields(static)
    # onnxruntime's own members compare unequal to ours.
    types = (_name(own_type(static.activation_type)), _name(settings["weight_type"]))
    if _name(static.quant_format) == "QOperator" and "QFLOAT8E4M3FN" in types:
        _LOG.warning("Q/DQ pairs are written: there are no operators on 8-bit floats")
        static = replace(static, quant_format=QuantFormat.QDQ)
    if static.per_channel and (_name(static.quant_format), types[1]) == ("QOperator", "QUInt8"):
        _LOG.warning("weights are int8: integer convolutions have one zero point for all channels")
        settings["weight_type"] = QuantType.QInt8
    extra_options = static.extra_options or {}
    config = QuantizationConfig(
        **settings,
        calibrate_method=static.calibrate_method,
        quant_format=static.quant_format,
        activation_type=own_type(static.activation_type),
        extra_op_types_to_quantize=_extra(static.op_types_to_quantize),
        execution_providers=list(static.calibration_providers or ["CPUExecutionProvider"]),
        include_sq=bool(extra_options.get("SmoothQuant")),
        extra_options=own_options(extra_options, static.calibrate_method),
    )
    keeps = bool(extra_options.get("QDQKeepRemovableActivations"))
    cache = None if static.calibration_cache_path is None else Path(static.calibration_cache_path)
    _run(config, model_input, Path(model_output), static.calibration_data_reader, cache, keeps_bounds=keeps)


@known_keywords("quantry.ort.quantize_dynamic")
@_arguments_of(DynamicQuantConfig, _DYNAMIC_ORDER)
def quantize_dynamic(model_input: ModelInput, model_output: str | os.PathLike[str], **options: Any) -> None:
    """Quantize the weights of a model; activations are quantized at run time, so no data is needed.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        **options: The fields of `DynamicQuantConfig`.

    Raises:
        UserError: The model or an argument cannot be used; the message says why.
    """
    dynamic = DynamicQuantConfig(**options)
    everything = dynamic.op_types_to_quantize is None
    config = QuantizationConfig(
        **_common_fields(dynamic),
        use_dynamic_quant=True,
        extra_op_types_to_quantize=["Attention", "EmbedLayerNormalization"] if everything else [],
        extra_options=own_options(dynamic.extra_options),
    )
    _run(config, model_input, Path(model_output))


def _common_fields(config: StaticQuantConfig | DynamicQuantConfig) -> dict[str, Any]:
    """Return the fields of `QuantizationConfig` that both classes have."""
    names = ("op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude")
    switches = ("per_channel", "reduce_range", "use_external_data_format")
    return {
        "weight_type": own_type(config.weight_type),
        **{name: list(getattr(config, name) or ()) for name in names},
        **{name: getattr(config, name) for name in switches},
    }


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
    options = {name: getattr(quant_config, name) for name in kind.__dataclass_fields__ if hasattr(quant_config, name)}
    function(model_input, model_output, **options)


def _extra(operators: Sequence[str] | None) -> list[str]:
    return list(_EXTRA) if operators is None else [name for name in operators if name in _EXTRA]


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
    config = replace(config, nodes_to_exclude=_existing(config.nodes_to_exclude, original))
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


def _existing(names: Sequence[str], model: onnx.ModelProto) -> list[str]:
    """Return the names of nodes that a model has; onnxruntime ignores others."""
    nodes = {name for node in model.graph.node for name in (node.name, *node.output)}
    for name in names:
        if name not in nodes:
            _LOG.warning("nodes_to_exclude has %r, which is no node of the model", name)
    return [name for name in names if name in nodes]
