"""What the tools of ``quark.onnx.tools`` do to a model."""

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveInitializersFromInputsPass
from PIL import Image

from quantry.convert import QdqDialect, translate
from quantry.convert.translate import lift_constants
from quantry.errors import DataError, ModelError, RecipeError
from quantry.evaluate.metrics import find_metric
from quantry.graph.edit import FreshNames, bypass, constant_of
from quantry.graph.passes.convert_opset import convert_opset
from quantry.graph.passes.float16 import float16_to_float32, float32_to_bfloat16, float32_to_float16
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.qdq import before_pair, is_dequantize, is_fake_quantize, tensor_of
from quantry.graph.weights import new_initializer
from quantry.onnx.presets import get_default_config
from quantry.onnx.quantizer import ModelQuantizer, inputs_with_channels_last
from quantry.runtime.optimized import with_integer_operators

_METRICS = ("cosine", "l2", "psnr", "ssim")


def _read_image(path: Path) -> NDArray[Any]:
    return np.asarray(Image.open(path).convert("RGB"))


_READERS: dict[str, Callable[[Path], NDArray[Any]]] = {
    ".npy": np.load,
    ".png": _read_image,
    ".jpg": _read_image,
    ".jpeg": _read_image,
}


def to_float32(model: ir.Model) -> ir.Model:
    """Return a float16 model in float32."""
    float16_to_float32(model)
    return model


def to_float16(model: ir.Model, keep_io_types: bool = False) -> ir.Model:
    """Return a float32 model in float16, with float32 inputs and outputs if ``keep_io_types`` is True."""
    ends = _float_ends(model) if keep_io_types else ()
    float32_to_float16(model)
    _cast_ends(model, ends)
    return model


def _float_ends(model: ir.Model) -> tuple[str, ...]:
    ends = (*model.graph.inputs, *model.graph.outputs)
    return tuple(str(value.name) for value in ends if value.dtype == ir.DataType.FLOAT)


def _cast_ends(model: ir.Model, ends: tuple[str, ...]) -> None:
    """Insert casts so that these inputs and outputs are float32."""
    graph, names = model.graph, FreshNames(model)
    for value in [entry for entry in graph.inputs if entry.name in ends]:
        narrow, readers = value.type, list(value.uses())
        cast = ir.node("Cast", [value], attributes={"to": int(value.dtype or 0)}, name=names.node(f"{value.name}_Cast"))
        cast.outputs[0].name = names.value(f"{value.name}_narrow")
        cast.outputs[0].type, cast.outputs[0].shape = narrow, value.shape
        value.type = ir.TensorType(ir.DataType.FLOAT)
        graph.insert_before(graph[0], cast)
        for use in readers:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    for index, value in enumerate(list(graph.outputs)):
        if value.name not in ends or value.is_graph_input():
            continue
        cast = ir.node(
            "Cast", [value], attributes={"to": int(ir.DataType.FLOAT)}, name=names.node(f"{value.name}_Cast")
        )
        name, value.name = value.name, names.value(f"{value.name}_narrow")
        cast.outputs[0].name = name
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]


def to_text(model: ir.Model) -> str:
    """Return a model in protobuf's text form."""
    written: bytes = onnx.serialization.registry.get("textproto").serialize_proto(ir.serde.serialize_model(model))
    return written.decode()


def from_text(text: str) -> onnx.ModelProto:
    """Return the model of a text in protobuf's text form."""
    model = onnx.ModelProto()
    try:
        onnx.serialization.registry.get("textproto").deserialize_proto(text.encode(), model)
    except Exception as error:  # protobuf's exception is private to the library that onnx was built with
        raise ModelError(f"the text must be a model in protobuf's text form, got: {error}") from error
    return model


def channels_last(model: ir.Model) -> ir.Model:
    """Return the model with channels-last inputs."""
    return inputs_with_channels_last(model)


def _quantized(model: ir.Model, preset: str, **options: Any) -> onnx.ModelProto:
    config = get_default_config(preset)
    config.extra_options = {**(config.extra_options or {}), **options}
    config.convert_fp16_to_fp32 = True
    config.include_cle = False
    # Formats without scales need no data, and AMD's tools that need it take random data too.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no calibration data")
        result = ModelQuantizer(config).quantize_model(ir.serde.serialize_model(model))
    assert result is not None
    return result


def to_bfloat16(model: ir.Model, format: str = "with_cast") -> ir.Model | onnx.ModelProto:  # noqa: A002 - AMD's name
    """Return the model in bfloat16.

    Args:
        model: The model, float32 or float16.
        format: ``with_cast`` rounds tensors by Cast nodes, ``customqdq`` (or ``vitisqdq``) by vendor pairs;
            ``simulate_bf16`` rounds the weights only, which stay float32; ``bf16`` computes in bfloat16 between float32
            inputs and outputs, which onnxruntime cannot run on CPUs.
    """
    if format not in ("with_cast", "vitisqdq", "customqdq", "simulate_bf16", "bf16"):
        raise RecipeError(f"--format must be with_cast, customqdq, vitisqdq, simulate_bf16 or bf16, got {format!r}")
    if format == "simulate_bf16":
        return _rounded_weights(model)
    if format == "bf16":
        float16_to_float32(model)
        ends = _float_ends(model)
        float32_to_bfloat16(model)
        _cast_ends(model, ends)
        return model
    return _quantized(model, "BF16", **({"BF16QDQToCast": True} if format == "with_cast" else {}))


def _rounded_weights(model: ir.Model) -> ir.Model:
    float16_to_float32(model)
    for value in model.graph.initializers.values():
        array = constant_of(value)
        if array is not None and array.dtype == np.float32:
            value.const_value = ir.tensor(array.astype(ml_dtypes.bfloat16).astype(np.float32), name=value.name)
    return model


def to_block_float(model: ir.Model) -> onnx.ModelProto:
    """Return the model with tensors in BFP16."""
    return _quantized(model, "BFP16")


def quantized_with_random_data(model: ir.Model, preset: str = "XINT8") -> onnx.ModelProto:
    """Return the model quantized with random data."""
    return _quantized(model, preset)


def without_pairs(model: ir.Model) -> ir.Model:
    """Remove Q/DQ nodes; integer weights become the floats that they stand for."""
    lift_constants(model)
    for node in list(model.graph):
        if is_fake_quantize(node) and node.inputs[0] is not None:
            bypass(node, node.inputs[0])
        elif is_dequantize(node):
            _restore(model, node)
    remove_unused(model)
    return model


def _restore(model: ir.Model, node: ir.Node) -> None:
    tensor, floats = tensor_of(node), before_pair(node.outputs[0])
    if tensor is not None and floats is not tensor.integers:
        bypass(node, floats)
        return
    if tensor is None or tensor.numbers is None or tensor.scale is None or tensor.scale.dtype is None:
        return
    numbers = tensor.numbers.astype(tensor.scale.dtype.numpy())
    restored = new_initializer(FreshNames(model).value(f"{node.outputs[0].name}_float"), numbers)
    model.graph.register_initializer(restored)
    bypass(node, restored)


def integer_operators(model: ir.Model) -> onnx.ModelProto:
    """Return a Q/DQ model with integer operators instead of Q/DQ pairs."""
    return with_integer_operators(ir.serde.serialize_model(model))


def fixed_shapes(model: ir.Model, fix_shapes: str = "") -> onnx.ModelProto:
    """Return the model with fixed input shapes, given as ``name:[1,3,224,224]``."""
    shapes = re.findall(r"([^\s:;\[\]]+)\s*:\s*\[([\d,\s]+)\]", fix_shapes)
    inputs = {value.name: value for value in model.graph.inputs}
    for name, lengths in shapes:
        if name not in inputs:
            raise RecipeError(
                f"--fix_shapes must name inputs of the model ({', '.join(map(str, inputs))}), got {name!r}"
            )
        inputs[name].shape = ir.Shape([int(length) for length in lengths.split(",")])
    if not shapes:
        raise RecipeError(f"--fix_shapes must be like 'image:[1,3,224,224]', got {fix_shapes!r}")
    return inferred(model)


def inferred(model: ir.Model) -> ir.Model:
    """Return the model with the shape of every tensor."""
    infer_shapes(model)
    return model


def at_opset(model: ir.Model, target_opset: int = 17) -> ir.Model:
    """Return the model with a newer opset."""
    if target_opset < model.opset_imports[""]:
        raise RecipeError(f"--target_opset must be at least the model's {model.opset_imports['']}, got {target_opset}")
    return convert_opset(model, target_opset)


def custom_operators(model: ir.Model, reverse_conversion: bool = False) -> ir.Model:
    """Return the model with vendor operators of the older dialect, or of the newer one."""
    return translate(model, QdqDialect.QUARK if reverse_conversion else QdqDialect.VITIS)


def unique_initializers(model: ir.Model) -> ir.Model:
    """Return the model with one initializer for each reader."""
    names = FreshNames(model)
    for value in list(model.graph.initializers.values()):
        array = constant_of(value)
        if array is None:
            continue
        for use in list(value.uses())[1:]:
            copy = new_initializer(names.value(f"{value.name}_copy"), array)
            model.graph.register_initializer(copy)
            use.node.replace_input_with(use.idx, copy)
    return model


def without_input_initializers(model: ir.Model) -> ir.Model:
    """Return the model without inputs that are also initializers, with an IR version that allows that."""
    model.ir_version = max(model.ir_version, 4)
    RemoveInitializersFromInputsPass()(model)
    return model


def finite_weights(model: ir.Model, replace_inf_value: float = 10000.0) -> ir.Model:
    """Return the model with a finite number instead of each infinity in its weights."""
    for value in model.graph.initializers.values():
        array = constant_of(value)
        if array is not None and np.issubdtype(array.dtype, np.floating) and np.isinf(array).any():
            limited = np.where(np.isinf(array), np.sign(array) * replace_inf_value, array).astype(array.dtype)
            value.const_value = ir.tensor(limited, name=value.name)
    return model


def evaluate(baseline_results_folder: str, quantized_results_folder: str) -> dict[str, float]:
    """Compare two folders of results file by file, and print the mean of each metric.

    Args:
        baseline_results_folder: Results of the float model: ``.npy`` files or images.
        quantized_results_folder: Results of the quantized model, in files of the same names.

    Returns:
        Mean by metric: cosine, l2, psnr and ssim; without those that are not finite for some file.

    Raises:
        DataError: A folder is empty, or a file has no counterpart.
    """
    first, second = Path(baseline_results_folder), Path(quantized_results_folder)
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.suffix.lower() in _READERS)
    if not names:
        raise DataError(f"baseline_results_folder must have {', '.join(_READERS)} files, got none in {first}")
    missing = [str(name) for name in names if not (second / name).is_file()]
    if missing:
        raise DataError(f"quantized_results_folder must have the files of the other folder, got no {missing[0]}")
    scores: dict[str, list[float]] = {metric: [] for metric in _METRICS}
    for name in names:
        read = _READERS[name.suffix.lower()]
        arrays = read(first / name), read(second / name)
        for metric in _METRICS:
            scores[metric].append(find_metric(metric).score(*arrays))
    means = {metric: float(np.mean(values)) for metric, values in scores.items() if np.isfinite(values).all()}
    listed = ", ".join(f"{metric} {value:.6g}" for metric, value in means.items())
    sys.stdout.write(f"{len(names)} files: {listed}\n")
    return means
