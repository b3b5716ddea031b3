"""The tools of ``quark.onnx.tools``: each converts or compares models, as a function and as a command.

``quantry compat -m quark.onnx.tools.NAME ARGUMENTS`` runs one as AMD's documents run them with ``python -m``. Each is
also a module with a function of the tool's name and one called ``convert``; both take a path or an ``onnx.ModelProto``
and return a new proto.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantry.errors import RecipeError, nearest_spelling
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.onnx import tool_functions as functions


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: Its name.
        function: Takes a model and the options below, and returns a model.
        options: Additional arguments of the command: name to default; their types are those of the defaults.
    """

    name: str
    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, model: Any, **options: Any) -> onnx.ModelProto:
        """Return the converted model.

        Args:
            model: A path or an ``onnx.ModelProto``.
            options: See `Tool.options`.
        """
        result = self.function(model_source(model).load(), **options)
        return result if isinstance(result, onnx.ModelProto) else ir.serde.serialize_model(result)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the tool as a command.

        Args:
            arguments: The command line; None takes that of the process.
        """
        given = vars(self._parser().parse_args(arguments))
        source, target = given.pop("input"), given.pop("output")
        stored_outside = given.pop("save_as_external_data")
        options = {name: given[name] for name in self.options}
        if target is None:
            raise RecipeError(f"--output must be the path of the result, got none in {self.name}")
        model = ir.serde.deserialize_model(self.run(source, **options))
        write_model(model, Path(target), **({"external_data_threshold": 0} if stored_outside else {}))
        sys.stdout.write(f"wrote {target}\n")

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name)
        # Each of AMD's tools has its own names for the two files; every tool here accepts all of them.
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


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("convert_fp16_to_fp32", functions.to_float32),
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
        Tool("remove_qdq", functions.without_pairs),
        Tool("replace_inf_weights", functions.finite_weights, {"replace_inf_value": 10000.0}),
        _Evaluate("evaluate", functions.evaluate),
    )
}
"""Every tool by name."""


def tool_member(path: str, name: str) -> Any:
    """Return what a module of ``quark.onnx.tools`` has under a name.

    Args:
        path: Name of the tool.
        name: The name: the tool's own, ``convert`` or ``main``.

    Raises:
        AttributeError: It has no such name.
    """
    tool = TOOLS[path]
    known = {path: tool.run, "convert": tool.run, "main": tool.main}
    if name not in known:
        raise AttributeError(f"tool {path!r} has no attribute {name!r}{nearest_spelling(name, known)}")
    return known[name]
