"""Tools for running quantized models elsewhere: dumped tensors to compare with a device, sessions, operator library."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import DataError, ModelError, RecipeError
from quantry.files import write_file
from quantry.graph.load import model_source
from quantry.graph.qdq import is_dequantize, is_fake_quantize, is_quantize
from quantry.onnx.data_readers import RandomDataReader
from quantry.runtime.sessions import run_session, simulation_session

_DUMP = "./dump_results"


def dump_model(
    model_input: Any = None,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: Any = _DUMP,
    *,
    model: Any = None,
) -> None:
    """Run a quantized model on one sample and write its quantized tensors, weights included.

    Each tensor becomes two files named after it: ``.bin`` with the raw values and ``.txt`` with one value per line.
    Tensors of Q/DQ pairs are written as integers; formats with one node per tensor have rounded floats.

    Args:
        model_input: The quantized model: a path or an ``onnx.ModelProto``.
        dump_data_reader: Its first sample is used; None takes a random one.
        random_data_reader_input_shape: Shapes of the random sample, as in `RandomDataReader`. A path here is the
            directory, which comes third in vai_q_onnx.
        dump_float: Also write the float tensors between the nodes.
        output_dir: The directory; it is created if it is missing.
        model: The name of ``model_input`` in vai_q_onnx.

    Raises:
        ModelError: The model has no quantized tensors.
        DataError: The reader has no sample, or the model cannot run on it.
    """
    source, shape = model_input if model is None else model, random_data_reader_input_shape
    if isinstance(shape, str | os.PathLike):
        shape, output_dir = None, shape
    graph = model_source(source).load()
    quantized, floats = _tensors(graph)
    if not quantized:
        raise ModelError("dump_model must be given a quantized model, got one without quantized tensors")
    reader = RandomDataReader(source, shape) if dump_data_reader is None else dump_data_reader
    sample = reader.get_next()
    if sample is None:
        raise DataError(f"dump_data_reader must have a sample left, got none; {type(reader).__name__}")
    outputs = _run(graph, quantized + (floats if dump_float else []), sample)
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    file_names: set[str] = set()
    for name, array in {**dict(_constants(graph)), **outputs}.items():
        _write(folder / _file_name(name, file_names), array)


def _tensors(model: ir.Model) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the values that hold quantized tensors, and all others."""
    quantized: list[ir.Value] = []
    floats: list[ir.Value] = []
    for node in model.graph:
        values = quantized if is_quantize(node) or is_fake_quantize(node) else floats
        values.extend(value for value in node.outputs if value.name)
    return quantized, floats


def _constants(model: ir.Model) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the weights that are stored as integers."""
    for node in model.graph:
        stored = node.inputs[0] if is_dequantize(node) else None
        if stored is not None and stored.const_value is not None:
            yield str(stored.name), stored.const_value.numpy()


def _run(model: ir.Model, values: list[ir.Value], sample: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(value for value in values if value.name not in present)
    names = {value.name for value in values}
    results = run_session(simulation_session(model), dict(sample))
    return {name: array for name, array in results.items() if name in names}


def _file_name(tensor: str, file_names: set[str]) -> str:
    """Return a unique file name for a tensor: ``a/b`` and ``a_b`` would both be ``a_b``."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in tensor)
    name, count = plain, 1
    while name.casefold() in file_names:  # Some file systems ignore case.
        count += 1
        name = f"{plain}_{count}"
    file_names.add(name.casefold())
    return name


def _write(stem: Path, array: NDArray[Any]) -> None:
    write_file(stem.with_name(f"{stem.name}.bin"), np.ascontiguousarray(array).tobytes(), synced=False)
    lines = "\n".join(str(value) for value in array.reshape(-1).tolist())
    write_file(stem.with_name(f"{stem.name}.txt"), f"{lines}\n", synced=False)


NO_LIBRARY = "quantry: no library is needed"
"""Placeholder that `get_library_path` returns to scripts whose sessions ignore it."""

_skipped: list[str] = []


def skip_library(*, skipped: bool) -> None:
    """Set whether sessions ignore `NO_LIBRARY`, as they do in scripts that ``quantry compat`` runs."""
    _skipped[:] = [NO_LIBRARY] if skipped else []


def get_library_path(device: str = "CPU") -> str:
    """Return the argument for ``register_custom_ops_library``.

    Vendor operators are written with model-local functions that define them in standard operators, so stock onnxruntime
    runs every model and no library exists.

    Args:
        device: "CPU", "CUDA" or "ROCM"; it makes no difference.

    Raises:
        RecipeError: Always, except in a script that ``quantry compat`` runs.
    """
    if not _skipped:
        raise RecipeError(
            "get_library_path must not be called, because models need no library of custom operators; got a call for "
            f"{device!r}; remove register_custom_ops_library, or run the script with `quantry compat`"
        )
    return _skipped[0]


_COP_DOMAIN = "com.amd.quark"
"""Domain of AMD's custom operators."""

_COP_VERSION = 1
"""Version of that domain."""


def register_custom_ops_library(session_options: Any, device: str = "CPU") -> None:
    """Do nothing: models of quantry need no library of custom operators.

    Args:
        session_options: The options of a session.
        device: "CPU", "CUDA" or "ROCM"; it makes no difference.
    """


def create_infer_session_for_onnx_model(
    model_input: Any,
    sess_options: Any = None,
    providers: list[str] | None = None,
    provider_options: list[dict[str, str]] | None = None,
    use_external_data_format: bool = False,
    **kwargs: Any,
) -> Any:
    """Open a session of onnxruntime.

    Args:
        model_input: A path or an ``onnx.ModelProto``.
        sess_options: Options of the session; None takes the defaults.
        providers: Execution providers; None is the CPU.
        provider_options: Options of the providers, one entry each.
        use_external_data_format: Whether a proto is too large for one file of 2 GB.
        kwargs: Other arguments of ``onnxruntime.InferenceSession``.

    Returns:
        The ``onnxruntime.InferenceSession``.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    # By name, because scripts of `quantry compat` get other session options than `quantry.runtime` has.
    runtime: Any = import_module("onnxruntime")
    names = ["CPUExecutionProvider"] if providers is None else providers
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        model = model_input
        if isinstance(model_input, onnx.ModelProto):
            model = str(Path(folder) / "model.onnx")
            onnx.save(model_input, model, save_as_external_data=use_external_data_format)
        try:
            return runtime.InferenceSession(model, sess_options, names, provider_options, **kwargs)
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ModelError(f"onnxruntime must accept the model, got {error}") from error
