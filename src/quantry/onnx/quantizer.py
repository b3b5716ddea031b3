"""`ModelQuantizer` and the functions `quantize_static` and `quantize_dynamic`."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.data.random_data import RandomData
from quantry.errors import (
    DataError,
    Float16Error,
    ModelError,
    RecipeError,
    SelectionError,
    nearest_spelling,
    require_known,
)
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.mix import Score
from quantry.onnx.algorithms import AlgoConfig
from quantry.onnx.config import Config, QuantizationConfig
from quantry.onnx.data_readers import RandomDataReader
from quantry.onnx.half_models import HalfReader, as_half, is_half, with_half_ends
from quantry.onnx.options import RecipeDraft
from quantry.onnx.qconfig import QConfig
from quantry.onnx.translate import Job, translate
from quantry.quantization import QuantizationResult, quantize
from quantry.recipe import MatMulNBits, Qdq, WithinDrop
from quantry.recipe.checked import field_names

_TO_FIRST = (0, 3, 1, 2)  # NHWC to NCHW
_TO_LAST = (0, 2, 3, 1)  # NCHW to NHWC


def inputs_with_channels_last(model: ir.Model) -> ir.Model:
    """Change every input with four axes to channels-last and insert a Transpose after it.

    ::

        image [n, c, h, w] -> ...      becomes      image [n, h, w, c] -> Transpose -> ...

    Args:
        model: The model, changed in place.

    Returns:
        The same model.

    Raises:
        ModelError: No input has four axes.
    """
    graph = model.graph
    images = [value for value in graph.inputs if value.shape is not None and len(value.shape) == 4]
    if not images:
        raise ModelError(
            "convert_nchw_to_nhwc needs an input with four axes, got "
            + ", ".join(f"{value.name} {value.shape}" for value in graph.inputs)
        )
    for value in images:
        assert value.shape is not None
        first = value.shape
        uses = list(value.uses())
        node = ir.node("Transpose", [value], {"perm": _TO_FIRST}, name=f"{value.name}_channels_first")
        result = node.outputs[0]
        result.name, result.shape, result.type = f"{value.name}_nchw", first, value.type
        for use in uses:
            use.node.replace_input_with(use.idx, result)
        value.shape = ir.Shape([first[axis] for axis in _TO_LAST])
        graph.insert_before(graph[0], node)
    return model


class ChannelsLastReader:
    """Samples of another reader, with images for the model before its inputs were changed to channels-last."""

    def __init__(self, reader: Any, model: ir.Model) -> None:
        """Wrap a reader of samples for the changed model, or for the model before the change."""
        self._reader = reader
        self._shapes = {value.name: tuple(value.shape) for value in model.graph.inputs if value.shape is not None}

    def get_next(self) -> Any:
        """Return the next sample, or None at the end."""
        sample = self._reader.get_next()
        if not isinstance(sample, Mapping):
            return sample
        return {name: self._changed(np.asarray(array), self._shapes.get(name)) for name, array in sample.items()}

    @staticmethod
    def _changed(array: NDArray[Any], shape: tuple[Any, ...] | None) -> NDArray[Any]:
        if shape is None or array.ndim != len(_TO_LAST) or _fits(array.shape, shape):
            return array
        moved = array.transpose(_TO_LAST)
        return moved if _fits(moved.shape, shape) else array


def _fits(shape: tuple[int, ...], pattern: tuple[Any, ...]) -> bool:
    # The batch of a sample may be any.
    sizes = zip(shape[1:], pattern[1:], strict=True)
    return len(shape) == len(pattern) and all(not isinstance(size, int) or length == size for length, size in sizes)


_LOG = logging.getLogger("quantry")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)

ModelInput: TypeAlias = str | os.PathLike[str] | onnx.ModelProto


class ModelQuantizer:
    """Quantizes models; AMD Quark's class of that name.

    Attributes:
        config: The configuration; it is read at each call and never changed.

    Example:
        >>> from quantry.onnx import ModelQuantizer, get_default_config
        >>> quantizer = ModelQuantizer(get_default_config("XINT8"))
        >>> quantizer.quantize_model("model.onnx", "model.int8.onnx", reader)  # doctest: +SKIP
    """

    def __init__(self, config: Config | QuantizationConfig | QConfig) -> None:
        self.config = config

    def quantize_model(
        self,
        model_input: ModelInput,
        model_output: str | os.PathLike[str] | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | os.PathLike[str] | None = None,
        algorithms: Sequence[AlgoConfig] | None = None,
    ) -> onnx.ModelProto | None:
        """Quantize a model.

        Args:
            model_input: The float model: a path or a proto, which is not changed.
            model_output: Path of the result; None returns it instead.
            calibration_data_reader: An object with ``get_next()``, or any other form of data that `quantry.quantize`
                accepts. None uses one random sample, with a warning.
            calibration_data_path: A directory of ``.npy`` files instead of a reader.
            algorithms: Algorithms in addition to those of a `QConfig`.

        Returns:
            The quantized model if ``model_output`` is None, else None.

        Raises:
            UserError: The model, the data or the configuration cannot be used; the message says why.
        """
        job = self._job(tuple(algorithms or ()), model_input)
        return run_job(job, model_input, model_output, calibration_data_reader, calibration_data_path)

    def _job(self, algorithms: tuple[AlgoConfig, ...], model: ModelInput) -> Job:
        if isinstance(self.config, QConfig):
            return self.config.to_job(algorithms, model)
        if algorithms:
            raise RecipeError(
                f"algorithms must be used with a QConfig, got a {type(self.config).__name__}; use its switches such as "
                "include_cle, or a QConfig"
            )
        inner = self.config.global_quant_config if isinstance(self.config, Config) else self.config
        if not isinstance(inner, QuantizationConfig):
            raise RecipeError(
                "ModelQuantizer takes a QuantizationConfig, a Config of one, or a QConfig, "
                f"got {type(inner).__name__} in {type(self.config).__name__}"
            )
        return translate(inner)


def run_job(
    job: Job,
    model_input: ModelInput,
    model_output: str | os.PathLike[str] | None,
    reader: Any = None,
    data_path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto | None:
    """Quantize a model with a translated configuration.

    Args:
        job: The configuration.
        model_input: The float model.
        model_output: Path of the result; None returns it.
        reader: Calibration data.
        data_path: A directory of ``.npy`` files instead.

    Returns:
        The quantized model if ``model_output`` is None, else None.
    """
    if job.draft.quantize_fp16 and is_half(_structure(model_input)):
        return _run_half(job, model_input, model_output, (reader, data_path))
    result = job_result(job, model_input, reader, data_path)
    if model_output is None:
        return onnx.load_from_string(result.to_bytes())
    save_result(result, Path(model_output), job.draft)
    return None


def _structure(model: Any) -> onnx.ModelProto:
    """Return a model without the weights that it stores outside its file."""
    return model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model), load_external_data=False)


def _run_half(
    job: Job, model: ModelInput, output: str | os.PathLike[str] | None, data: tuple[Any, Any]
) -> onnx.ModelProto | None:
    """Quantize a float16 model in float32 and give the result the float types of the original."""
    prepare = replace(job.recipe.prepare, float16_to_float32=True)
    job = replace(job, recipe=replace(job.recipe, prepare=prepare))
    reader, path = data
    if reader is None and path is None:
        reader = _data(model, job.draft, None, None)
    if hasattr(reader, "get_next"):
        reader = HalfReader(reader)
    result = job_result(job, model, reader, path)
    written = ir.serde.deserialize_model(onnx.load_from_string(result.to_bytes()))
    if not job.draft.fp32_scale and isinstance(result.recipe.emit.format, Qdq | MatMulNBits):
        written = as_half(written)
    else:
        proto = with_half_ends(ir.serde.serialize_model(written), _structure(model))
        written = ir.serde.deserialize_model(proto)
    if output is None:
        return ir.serde.serialize_model(written)
    write_model(written, Path(output), **({"external_data_threshold": 0} if job.draft.external_data else {}))
    return None


def job_result(
    job: Job, model_input: Any, reader: Any = None, data_path: str | os.PathLike[str] | None = None
) -> QuantizationResult:
    """Quantize a model with a translated configuration and return everything about it.

    Args:
        job: The configuration.
        model_input: The float model.
        reader: Calibration data.
        data_path: A directory of ``.npy`` files instead.
    """
    draft = job.draft
    with _logged_at(draft.log_severity), _selection_named(job.selection), _temporary_files_in(draft.temporary_folder):
        for note in draft.notes:
            _LOG.log(logging.INFO if draft.quiet else logging.WARNING, note)
        model = _with_channels_last(_with_shapes(model_input, draft), draft)
        if draft.channels_last and hasattr(reader, "get_next"):
            reader = ChannelsLastReader(reader, model)
        data = _data(model, draft, reader, data_path)
        result = quantize(
            model,
            data,
            job.recipe,
            evaluation_data=draft.evaluation_data if draft.evaluate else None,
            score=_score(job),
        )
        _report(result, draft)
        return result


def _score(job: Job) -> Score | None:
    """Return the caller's score if the goal uses it; NumTarget and L2Target have priority."""
    mixed = job.recipe.mix.mixed
    is_needed = mixed is not None and isinstance(mixed.goal, WithinDrop)
    return job.draft.mix.score if is_needed and job.draft.mix is not None else None


def _with_shapes(model: ModelInput, draft: RecipeDraft) -> ModelInput | ir.Model:
    if not draft.fixed_shapes:
        return model
    graph = model_source(model).load()
    inputs = {value.name: value for value in graph.graph.inputs}
    for name, shape in draft.fixed_shapes.items():
        value = inputs.get(name)
        if value is None:
            names = list(filter(None, inputs))
            raise RecipeError(
                f"extra_options['FixShapes'] must name inputs of the model ({', '.join(names)}), got {name!r}"
                f"{nearest_spelling(name, names)}"
            )
        if value.shape is not None and len(value.shape) != len(shape):
            raise RecipeError(
                f"extra_options['FixShapes'] must keep the {len(value.shape)} axes of input {name!r}, got {shape}"
            )
        value.shape = ir.Shape(shape)
    return graph


def _with_channels_last(model: Any, draft: RecipeDraft) -> Any:
    return inputs_with_channels_last(model_source(model).load()) if draft.channels_last else model


def _data(model: Any, draft: RecipeDraft, reader: Any, path: str | os.PathLike[str] | None) -> Any:
    if reader is not None and path is not None:
        raise DataError(
            "calibration data must come from one place, got calibration_data_reader and calibration_data_path; "
            "give one of them"
        )
    if reader is not None or path is not None:
        return reader if path is None else path
    if draft.random_given:
        return _random(model, draft)
    # Without shapes and ranges, quantry.quantize itself draws the sample and warns.
    if draft.random.shapes or draft.random.ranges:
        warnings.warn(
            "no calibration data: one random sample is used; ranges and accuracy will be wrong",
            UserWarning,
            stacklevel=4,
        )
        return _random(model, draft)
    return None


def _random(model: Any, draft: RecipeDraft) -> Any:
    if not draft.random.shapes and not draft.random.ranges:
        return RandomData()
    return RandomDataReader(model, draft.random.shapes, draft.random.ranges)


def _report(result: QuantizationResult, draft: RecipeDraft) -> None:
    if draft.summary:
        quantized = len(result.plan.all_quantized)
        _LOG.info("%d nodes quantized, %d stayed float", quantized, len(result.plan.all_declined))
    if draft.evaluate:
        scores = result.evaluation.metrics
        _LOG.info("cosine %.6g, l2 %.6g against the float model", scores["cosine"].value, scores["l2"].value)


def save_result(result: QuantizationResult, path: Path, draft: RecipeDraft) -> None:
    """Write a result as the configuration says."""
    if draft.external_data:
        write_model(result.model, path, external_data_threshold=0)
    else:
        # AMD's functions write over their input, and scripts use one path for both.
        result.save(path, overwrite=True)


@contextmanager
def _selection_named(names: Mapping[str, str]) -> Iterator[None]:
    """Make errors of the selection name the caller's options instead of the fields of the recipe."""
    try:
        yield
    except Float16Error as error:
        # Edit the same exception, so that it keeps its notes and its traceback.
        error.args = Float16Error.of(error.label, "convert_fp16_to_fp32=True").args
        raise
    except SelectionError as error:
        owner, *path = error.field.split(".")
        if owner == "Selection" and path[0] in names:
            error.args = (f"{'.'.join((names[path[0]], *path[1:]))} {error.problem}",)
        raise


@contextmanager
def _temporary_files_in(folder: str | None) -> Iterator[None]:
    """Create temporary files in a folder for the duration of a call."""
    if folder is None:
        yield
        return
    if not Path(folder).is_dir():
        raise DataError(f"extra_options['TmpDir'] must be a folder that exists, got {folder!r}")
    folder_before = tempfile.tempdir
    tempfile.tempdir = str(Path(folder).resolve())
    try:
        yield
    finally:
        tempfile.tempdir = folder_before


@contextmanager
def _logged_at(severity: int | None) -> Iterator[None]:
    """Set the logging level by onnxruntime's severity for the duration of a call."""
    if severity is None:
        yield
        return
    if not 0 <= severity < len(_LEVELS):
        raise RecipeError(f"log_severity_level must be from 0 to {len(_LEVELS) - 1}, got {severity!r}")
    level_before = _LOG.level
    _LOG.setLevel(_LEVELS[severity])
    try:
        yield
    finally:
        _LOG.setLevel(level_before)


def quantize_static(
    model_input: ModelInput,
    model_output: str | os.PathLike[str] | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> onnx.ModelProto | None:
    """Quantize a model with scales from calibration data.

    Args:
        model_input: The float model: a path or a proto.
        model_output: Path of the result; None returns it.
        calibration_data_reader: An object with ``get_next()``; None uses one random sample, with a warning.
        calibration_data_path: A directory of ``.npy`` files instead.
        settings: Fields of `QuantizationConfig` by name.

    Returns:
        The quantized model if ``model_output`` is None, else None.

    Raises:
        UserError: The model, the data or a setting cannot be used; the message says why.
    """
    _check("quantize_static", settings)
    quantizer = ModelQuantizer(Config(QuantizationConfig(**settings)))
    return quantizer.quantize_model(model_input, model_output, calibration_data_reader, calibration_data_path)


def quantize_dynamic(
    model_input: ModelInput, model_output: str | os.PathLike[str] | None = None, **settings: Any
) -> onnx.ModelProto | None:
    """Quantize the weights of a model; activations are quantized at run time, so no data is needed.

    Args:
        model_input: The float model: a path or a proto.
        model_output: Path of the result; None returns it.
        settings: Fields of `QuantizationConfig` by name, such as ``weight_type`` or ``per_channel``.

    Returns:
        The quantized model if ``model_output`` is None, else None.

    Raises:
        UserError: The model or a setting cannot be used; the message says why.
    """
    _check("quantize_dynamic", settings)
    config = QuantizationConfig(**{**settings, "use_dynamic_quant": True})
    return ModelQuantizer(Config(config)).quantize_model(model_input, model_output)


def _check(function: str, settings: Mapping[str, Any]) -> None:
    require_known(function, settings, field_names(QuantizationConfig), "be given fields of QuantizationConfig")
