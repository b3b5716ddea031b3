"""`quant_pre_process`: preparation of a float model, with the arguments of onnxruntime's function of that name.

The clean-up is quantry's own, which has no limit of 2 GB on the model.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from quantry.errors import RecipeError
from quantry.files import require_regular
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions

_LOG = logging.getLogger("quantry")
_INT_MAX = 2**31 - 1
_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}


def quant_pre_process(  # noqa: PLR0913, PLR0917 - onnxruntime's arguments
    input_model_path: Any,
    output_model_path: str | os.PathLike[str],
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = _INT_MAX,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
) -> None:
    """Prepare a float model for quantization: infer shapes, fold constants and BatchNormalization, remove identities.

    Args:
        input_model_path: The float model: a path or an ``onnx.ModelProto``.
        output_model_path: Path of the result.
        skip_optimization: Fold and remove nothing.
        skip_onnx_shape: Do not infer shapes by ONNX's rules alone. Symbolic inference includes these rules, so shapes
            are missing only if ``skip_symbolic_shape`` is True as well.
        skip_symbolic_shape: Do not propagate the values of shapes.
        auto_merge: Continue if two symbolic dimensions conflict. quantry always does: an inferred dimension replaces an
            annotated one.
        int_max: The value that means "no bound" in slices, positive. The result does not depend on it: quantry
            computes exact dimensions.
        guess_output_rank: Assume that the first output of an unknown operator has the rank and type of its first input.
            Only annotations of the result depend on it; nothing is folded by a guess.
        verbose: 0 logs errors, 1 warnings, 2 information, 3 everything.
        save_as_external_data: Store weights outside the model file; above 1.5 GB they always are.
        all_tensors_to_one_file: One file for all weights instead of one per weight.
        external_data_location: With one file its name, relative to the model, ``<model>.data`` by default; otherwise
            the directory, by default that of the model.
        external_data_size_threshold: Smaller weights, in bytes, stay inside the model.

    Raises:
        UserError: The model cannot be used, or an argument is not supported; the message says why.
    """
    del auto_merge
    _check(int_max, verbose)
    target = Path(output_model_path)
    external_data = _ExternalData(all_tensors_to_one_file, external_data_location, external_data_size_threshold)
    log_level = _LOG.level
    _LOG.setLevel(_LEVELS[verbose])
    try:
        model = _prepared(input_model_path, not skip_optimization, not skip_onnx_shape, not skip_symbolic_shape)
        if guess_output_rank:
            _guess_ranks(model)
        if save_as_external_data:
            _write_external(model, target, external_data)
        else:
            write_model(model, target)
    finally:
        _LOG.setLevel(log_level)


@dataclass(frozen=True)
class _ExternalData:
    """Where external data is stored."""

    one_file: bool
    location: str | None
    threshold: int


def _check(int_max: int, verbose: int) -> None:
    if int_max < 1:
        raise RecipeError(f"int_max must be positive, got {int_max!r} in quant_pre_process")
    if verbose not in _LEVELS:
        raise RecipeError(f"verbose must be 0, 1, 2 or 3, got {verbose!r} in quant_pre_process")


def _prepared(model: Any, optimize: bool, by_rules: bool, symbolic: bool) -> ir.Model:
    options = PrepareOptions(
        infer_shapes=symbolic,
        fold_constants=optimize,
        fold_batch_norm=optimize,
        remove_identities=optimize,
    )
    prepared = prepare(model_source(model), options)
    for note in prepared.notes:
        _LOG.info("%s", note)
    graph = prepared.model
    if by_rules and not symbolic:
        ShapeInferencePass()(graph)
    return graph


def _guess_ranks(model: ir.Model) -> None:
    """Give outputs without a shape the rank and type of their node's first input, and infer what follows from that."""
    while True:
        unknown = next((node for node in model.graph if _has_guess(node)), None)
        if unknown is None:
            return
        source, output = unknown.inputs[0], unknown.outputs[0]
        assert source is not None
        assert source.shape is not None
        output.shape = ir.Shape([None] * len(source.shape))
        output.type = output.type or source.type
        ShapeInferencePass()(model)


def _has_guess(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    return bool(node.outputs) and node.outputs[0].shape is None and source is not None and source.shape is not None


def _write_external(model: ir.Model, target: Path, options: _ExternalData) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    require_regular(target)
    if options.one_file:
        location = f"{target.name}.data" if options.location in (None, "", ".", "./") else str(options.location)
        require_regular(target.parent / location)
        ir.save(model, target, external_data=location, size_threshold_bytes=options.threshold)
        return
    folder = Path(options.location or ".")
    (target.parent / folder).mkdir(parents=True, exist_ok=True)
    tensors = {}
    for number, (name, value) in enumerate(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < options.threshold:
            continue
        tensors[name] = tensor
        readable = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        file = folder / f"{target.stem}.{number}.{readable[:80]}"
        require_regular(target.parent / file)
        (value.const_value,) = ir.external_data.convert_tensors_to_external([tensor], target.parent, file.as_posix())
    ir.save(model, target)
    # Restore the tensors in memory: the model does not have to read them back from the files.
    for name, tensor in tensors.items():
        model.graph.initializers[name].const_value = tensor
