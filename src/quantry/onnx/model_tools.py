"""The tools of ``quark.onnx.tools``: each converts or compares models, as a function and as a command.

``quantry compat -m quark.onnx.tools.NAME ARGUMENTS`` runs one as AMD's documents run them with ``python -m``. Each is
also a module with a function of the tool's name and one called ``convert``; both take a path or an ``onnx.ModelProto``
and return a new proto.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantry.errors import RecipeError, nearest_spelling
from quantry.files import write_file
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.module_paths import TOOL_ALIASES
from quantry.onnx import pair_tools as pairs
from quantry.onnx import tool_functions as functions
from quantry.onnx.tensor_pictures import save_tensor_hist, save_weights_hist

# Each of AMD's tools has its own names for the two files; every tool here accepts all of them.
_INPUTS = ("input", "input_model", "input_model_path", "model_input", "model_path", "onnx_model")
_OUTPUTS = ("output", "output_model", "output_model_path", "float_model")
# A value that ends like this is the path of the result.
_SUFFIXES = (".onnx", ".onnxtxt", ".txt")


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: Its name.
        function: Takes a model and the options below, and returns a model.
        options: Additional arguments of the command: name to default; their types are those of the defaults.
        writes: Whether the result is a model.
    """

    name: str
    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    writes: bool = True

    def run(self, model: Any = None, *values: Any, **options: Any) -> Any:
        """Return the converted model, or what the tool found.

        AMD's functions have different forms: a model, paths of the model and of the result, or parsed arguments.

        Args:
            model: A path, an ``onnx.ModelProto``, or an ``argparse.Namespace`` with the fields of the command line.
            values: The path of the result, if it is to be written, then values of `Tool.options` in their order.
            options: Values of `Tool.options` by name; also model and result, by the names that AMD's functions have.

        Raises:
            RecipeError: There is no model.
        """
        if isinstance(model, argparse.Namespace):
            names = (*_INPUTS, *_OUTPUTS, *self.options)
            return self.run(
                **{name: value for name, value in vars(model).items() if name in names and value is not None}
            )
        sources = [options.pop(name) for name in _INPUTS if name in options]
        targets = [options.pop(name) for name in _OUTPUTS if name in options and name not in self.options]
        if not targets and values and isinstance(values[0], str | PathLike) and Path(values[0]).suffix in _SUFFIXES:
            targets, values = [values[0]], values[1:]
        if model is None and not sources:
            raise RecipeError(f"the model must be a path or an onnx.ModelProto, got none in {self.name}")
        result = self.function(self._read(sources[0] if model is None else model), *values, **options)
        if targets and targets[0]:
            if isinstance(result, ir.Model | onnx.ModelProto):
                output = ir.serde.deserialize_model(result) if isinstance(result, onnx.ModelProto) else result
                write_model(output, Path(targets[0]))
            elif isinstance(result, str):
                write_file(targets[0], result)
        return ir.serde.serialize_model(result) if isinstance(result, ir.Model) else result

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the tool as a command.

        Args:
            arguments: The command line; None takes that of the process.
        """
        values = vars(self._parser().parse_args(arguments))
        source, target = values.pop("input"), values.pop("output")
        stored_outside = values.pop("save_as_external_data")
        options = {name: values[name] for name in self.options}
        if not self.writes:
            self.run(source, **options)
            return
        if target is None:
            raise RecipeError(f"--output must be the path of the result, got none in {self.name}")
        model = ir.serde.deserialize_model(self.run(source, **options))
        write_model(model, Path(target), **({"external_data_threshold": 0} if stored_outside else {}))
        sys.stdout.write(f"wrote {target}\n")

    def _read(self, model: Any) -> Any:
        """Return what the function takes."""
        return model_source(model).load()

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name)
        parser.add_argument("--input", "--input_model", "--input_model_path", required=True)
        parser.add_argument(
            "--output", "--output_model", "--output_model_path", "--quant_model", "--quantized_model_path"
        )
        parser.add_argument(
            "--save_as_external_data", "--external_data", nargs="?", const=True, default=False, type=_truth
        )
        for flag in ("--all_tensors_to_one_file", "--disable_shape_infer"):
            parser.add_argument(flag, action="store_true", help="The result is the same with and without it.")
        for name, default in self.options.items():
            kind = _truth if isinstance(default, bool) else type(default)
            switch: dict[str, Any] = {"nargs": "?", "const": True} if isinstance(default, bool) else {}
            parser.add_argument(f"--{name}", default=default, type=kind, **switch)
        return parser


def _truth(text: str) -> bool:
    return str(text).lower() in ("true", "1", "yes")


@dataclass(frozen=True)
class _Evaluate(Tool):
    """The tool that compares two folders instead of converting a model."""

    def run(self, *folders: Any, **options: Any) -> Any:
        """Return the mean of each metric, see `tool_functions.evaluate`."""
        return functions.evaluate(*folders, **options)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the tool as a command."""
        parser = argparse.ArgumentParser(prog=self.name)
        for name in ("--baseline_results_folder", "--quantized_results_folder"):
            parser.add_argument(name, required=True)
        self.run(**vars(parser.parse_args(arguments)))


@dataclass(frozen=True)
class _ToText(Tool):
    """The tool that writes a model as text."""

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the tool as a command."""
        values = self._parser().parse_args(arguments)
        write_file(values.output, self.run(values.input))
        sys.stdout.write(f"wrote {values.output}\n")


@dataclass(frozen=True)
class _FromText(Tool):
    """The tool that reads a model from text."""

    def _read(self, model: Any) -> Any:
        return Path(model).read_text(encoding="utf-8")


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("convert_a8w8_npu_to_a8w8_cpu", pairs.for_cpus),
        Tool("convert_bias_int32_to_int16", pairs.int16_biases),
        Tool("convert_customqdq_to_qdq", pairs.standard_pairs),
        Tool("convert_fp16_to_fp32", functions.to_float32),
        Tool("convert_fp32_to_fp16", functions.to_float16, {"keep_io_types": False}),
        Tool("float16", functions.to_float16, {"keep_io_types": False}),
        Tool("convert_resize_fs_to_pof2s", pairs.power_of_two_resizes),
        Tool("convert_s8s8_to_u8s8", pairs.unsigned_activations),
        Tool("convert_u16s8_to_s16s8", pairs.signed_wide_activations),
        Tool("convert_u16u8_to_u8u8", pairs.narrow_activations),
        _ToText("convert_onnx_to_onnxtxt", functions.to_text),
        _FromText("convert_onnxtxt_to_onnx", functions.from_text),
        Tool("convert_fp32_to_bf16", functions.to_bfloat16, {"format": "with_cast"}),
        Tool("convert_fp16_to_bf16", functions.to_bfloat16, {"format": "with_cast"}),
        Tool("convert_fp32_to_bfp16", functions.to_block_float),
        Tool("convert_fp16_to_bfp16", functions.to_block_float),
        Tool("convert_nchw_to_nhwc", functions.channels_last),
        Tool("convert_dynamic_to_fixed", functions.fixed_shapes, {"fix_shapes": ""}),
        Tool("convert_opset_version", functions.at_opset, {"target_opset": 17}),
        Tool("convert_custom_ops", functions.custom_operators, {"reverse_conversion": False}),
        Tool("convert_qdq_to_qop", functions.integer_operators),
        Tool("convert_quant_to_float", functions.without_pairs),
        Tool("convert_shared_initializer_to_unique", functions.unique_initializers),
        Tool("fix_shapes", functions.inferred),
        Tool("random_quantize", functions.quantized_with_random_data, {"preset": "XINT8"}),
        Tool("remove_initializer_from_input", functions.without_input_initializers),
        Tool("insert_clip_bfloat16_qdq", pairs.clips_before_bfloat16_pairs),
        Tool("print_a16w8_a8w8_nodes", pairs.nodes_by_bits, writes=False),
        Tool("remove_bf16_cast", pairs.without_bfloat16_casts),
        Tool("remove_qdq", functions.without_pairs),
        Tool("remove_qdq_between_ops", pairs.without_pairs_between, {"between_ops": ""}),
        Tool("remove_qdq_mul_add", pairs.without_pairs_between_mul_and_add),
        Tool("replace_bfloat16_qdq_cast", pairs.casts_for_bfloat16_pairs),
        Tool("save_tensor_hist", save_tensor_hist, {"data_path": "", "output_path": "tensor_hist"}, writes=False),
        Tool("save_weights_hist", save_weights_hist, {"output_path": "weights_hist"}, writes=False),
        Tool("replace_inf_weights", functions.finite_weights, {"replace_inf_value": 10000.0}),
        _Evaluate("evaluate", functions.evaluate),
    )
}
"""Every tool by name."""


# Functions of AMD's modules that do something else than the tool of that name.
_OTHERS: dict[str, dict[str, Callable[..., Any]]] = {
    "convert_customqdq_to_qdq": {"custom_ops_infer_shapes": TOOLS["fix_shapes"].run},
    "float16": {"convert_float16_to_float": TOOLS["convert_fp16_to_fp32"].run},
}


def tool_member(path: str, name: str) -> Any:
    """Return what a module of ``quark.onnx.tools`` has under a name.

    Args:
        path: Name of the tool.
        name: The name: the tool's own, ``convert``, ``main``, ``run_main`` or another of `TOOL_ALIASES`.

    Raises:
        AttributeError: It has no such name.
    """
    tool = TOOLS[path]
    members = {path: tool.run, "convert": tool.run, "main": tool.main, "run_main": tool.main}
    members |= dict.fromkeys(TOOL_ALIASES.get(path, "").split(), tool.run) | _OTHERS.get(path, {})
    if name not in members:
        raise AttributeError(f"tool {path!r} has no attribute {name!r}{nearest_spelling(name, members)}")
    return members[name]
