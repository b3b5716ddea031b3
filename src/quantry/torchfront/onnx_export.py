"""Writes a quantized module, or a model that contains one, as ONNX and compares it with torch."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

import quantry
from quantry.emit import emit
from quantry.errors import ModelError, RecipeError, known_keywords
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.passes import convert_opset
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.quantized_model import QuantizedModel
from quantry.notes import Note
from quantry.recipe import EmitOptions, Format, Qdq, VitisQdq
from quantry.recipe.checked import Checked
from quantry.runtime.sessions import run_session, simulation_session
from quantry.targets import Violation, check_model
from quantry.torchfront.exactness import rounded_operators
from quantry.torchfront.freezing import freeze
from quantry.torchfront.graph_capture import call_error, capture, example_call
from quantry.torchfront.lowering import lower
from quantry.torchfront.quantized_module import QuantizedModule, evaluation_mode
from quantry.torchfront.submodules import MergedModel, frozen_inside, region_operators, regions
from quantry.torchfront.switches import require_enabled

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of a call."""


@dataclass(frozen=True)
class OutputDifference:
    """How one output of the ONNX model differs from that of the torch module.

    Attributes:
        name: Name of the output.
        count: Number of values compared.
        differing: Number of values that are not equal.
        largest: The largest difference.
    """

    name: str
    count: int
    differing: int
    largest: float


@dataclass(frozen=True)
class Exported:
    """The written files and how they compare with torch.

    Attributes:
        path: The ONNX file.
        files: All files written.
        model: The quantized model.
        differences: One per output, on the example and all samples, in a session without graph optimizations.
        rounded: Operator types that torch and onnxruntime may round differently, whatever the samples show.
        violations: What an NPU would reject in the quantized parts; empty for recipes without NPU limits.
        notes: Messages for the user.
    """

    path: Path
    files: tuple[Path, ...]
    model: QuantizedModel
    differences: tuple[OutputDifference, ...]
    rounded: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether onnxruntime and torch agree bit for bit: on the samples, and because no operator can differ."""
        return not self.rounded and not any(entry.differing for entry in self.differences)

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.path}: onnxruntime and torch agree bit for bit"
        worst = max(self.differences, key=lambda entry: entry.largest, default=OutputDifference("", 0, 0, 0.0))
        if any(entry.differing for entry in self.differences):
            text = f"{worst.differing} of {worst.count} values of {worst.name!r} differ, by {worst.largest:.3g}"
        else:
            text = f"onnxruntime and torch agree in all {sum(entry.count for entry in self.differences)} values"
        exceptions = f"; exact except for {', '.join(self.rounded)}" if self.rounded else ""
        return f"{self.path}: {text}{exceptions}"


@dataclass(frozen=True)
class ExportOptions(Checked):
    """How a module is written.

    Attributes:
        format: The ONNX format; None uses that of the recipe.
        input_names: Names of the inputs; empty keeps those of the captured graph.
        output_names: Names of the outputs; empty keeps those of the captured graph.
        dynamic_batch: Keep the first axis of inputs dynamic. False writes the example's sizes, as NPU compilers need.
        opset: Smallest operator set of the file; None uses the smallest that has the types.
    """

    format: Format | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    dynamic_batch: bool = False
    opset: int | None = None


@known_keywords("export", {"output_dir": "path", "input_args": "example", "config": "options"})
def export(
    model: nn.Module,
    path: str | Path,
    example: Any,
    options: ExportOptions | None = None,
    *,
    samples: Iterable[Any] = (),
) -> Exported:
    """Write a model as quantized ONNX and compare it with the torch one.

    Args:
        model: A quantized module, frozen or not, or a model that contains some; it is not changed. Everything outside
            the quantized modules is written as float.
        path: The file.
        example: Arguments to call the model with: a tensor, a tuple of positional arguments, or a dict of keyword
            arguments.
        options: How to write it.
        samples: More arguments, with the sizes of the example, on which onnxruntime is compared with torch.

    Raises:
        ModelError: The model contains no quantized module, its quantizers are disabled, or torch cannot capture the
            rest of the model.
        DataError: The example contains no tensor, or does not fit the model.
    """
    options = options or ExportOptions()
    if not isinstance(options, ExportOptions):
        raise RecipeError(f"options must be ExportOptions(...), got {type(options).__name__}; in export")
    require_enabled(model, "export")
    calls: list[Call] = torch.utils._pytree.tree_map(
        lambda leaf: leaf.cpu() if torch.is_tensor(leaf) else leaf,
        [example_call(model, call, caller="export") for call in (example, *samples)],
    )
    if isinstance(model, QuantizedModule):
        return _export(model if model.is_frozen else freeze(model), Path(path), calls, options)
    with frozen_inside(model):
        return _export(model, Path(path), calls, options)


def _export(model: nn.Module, path: Path, calls: list[Call], options: ExportOptions) -> Exported:
    for call in calls:
        wrong = call_error(model, *call, "export")
        if wrong is not None:
            raise wrong
    expected = [_results(model, call) for call in calls]  # before writing, so that a wrong example leaves no file
    merged, inside = _assembled(model, calls[0], options)
    if options.opset is not None and options.opset > merged.model.opset_imports[""]:
        merged.model = convert_opset(merged.model, options.opset)
    _fix_sizes(merged.model, calls[0], options)
    merged.rename(_new_names(merged.model, options))
    recipe = inside[0].definition.recipe
    written = recipe.emit if options.format is None else EmitOptions(options.format)
    metadata = {"quantry.version": quantry.__version__}
    quantized = emit(FloatModel(merged.model), merged.plan, merged.params, written, metadata)
    files = quantized.save(path)
    limited = recipe.scale.npu is not None and isinstance(written.format, Qdq | VitisQdq)
    checked = limited and bool(merged.plan.quantized_nodes)  # nothing is where all operators belong to branches
    return Exported(
        path=path,
        files=files,
        model=quantized,
        differences=_differences(expected, calls, quantized),
        rounded=rounded_operators(merged.model, QuantizedView(merged.plan, merged.params)),
        violations=_violations(merged, quantized) if checked else (),
        notes=(*(note for module in inside for note in module.definition.notes), *quantized.notes),
    )


def _violations(merged: MergedModel, quantized: QuantizedModel) -> tuple[Violation, ...]:
    """Return violated rules of quantized nodes; nodes that are float on purpose run on another device."""
    outside = {node.name for node in merged.model.graph} - set(merged.plan.quantized_nodes)
    return tuple(entry for entry in check_model(quantized.model.clone(), "npu-int8") if entry.node not in outside)


def _assembled(model: nn.Module, call: Call, options: ExportOptions) -> tuple[MergedModel, list[QuantizedModule]]:
    """Return the float graph of the whole model with the plan of its quantized parts, and these parts."""
    if isinstance(model, QuantizedModule):
        definition = model.definition
        return MergedModel(definition.model.model.clone(), definition.plan, definition.params), [model]
    with _on_cpu(model), region_operators(model, *call) as modules:
        if not modules:
            raise ModelError(
                f"a model to export must be or contain a quantized module, got {type(model).__name__} without any; "
                "quantize it first"
            )
        graph = capture(model, *call, dynamic_shapes="batch" if options.dynamic_batch else None)
        first = next(iter(modules))
        lowered = lower(graph, f"export the quantized module by itself: export_onnx(model.{first}, ...)")
    merged = MergedModel(lowered.model)
    for key, node in regions(lowered.model).items():
        merged.insert(node, modules[key].definition)
    infer_shapes(merged.model)
    return merged, list(modules.values())


@contextmanager
def _on_cpu(model: nn.Module) -> Iterator[None]:
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    model.cpu()
    try:
        yield
    finally:
        model.to(device)


def _fix_sizes(model: ir.Model, call: Call, options: ExportOptions) -> None:
    if options.dynamic_batch:
        return
    for value, tensor in zip(_inputs(model), _tensors(call), strict=True):
        value.shape = ir.Shape(tensor.shape)
    for node in model.graph:
        for output in node.outputs:
            output.shape = None
    infer_shapes(model)


def _new_names(model: ir.Model, options: ExportOptions) -> dict[str, str]:
    sides = ((_inputs(model), options.input_names, "input"), (model.graph.outputs, options.output_names, "output"))
    names: dict[str, str] = {}
    for values, new_names, side in sides:
        if new_names and len(new_names) != len(values):
            raise RecipeError(f"{side}_names must name all {len(values)} {side}s, got {list(new_names)}; in export")
        names |= {value.name or "": name for value, name in zip(values, new_names, strict=False)}
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise RecipeError(f"input_names and output_names must be unique, got {twice[0]!r} twice; in export")
    return names


def _inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def _tensors(call: Call) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(call) if torch.is_tensor(leaf)]


def _results(model: nn.Module, call: Call) -> list[Any]:
    """Return the model's results for the example, in evaluation mode."""
    arguments, keywords = call
    with evaluation_mode(model), _on_cpu(model), torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(model(*arguments, **keywords))
    return [leaf.numpy() for leaf in leaves if torch.is_tensor(leaf)]


def _differences(
    expected: list[list[Any]], calls: list[Call], quantized: QuantizedModel
) -> tuple[OutputDifference, ...]:
    session = simulation_session(quantized.model)
    per_call: list[list[OutputDifference]] = []
    for expected_outputs, call in zip(expected, calls, strict=True):
        feeds = {port.name: tensor.numpy() for port, tensor in zip(session.get_inputs(), _tensors(call), strict=True)}
        results = run_session(session, feeds)
        per_call.append(
            [_difference(name, *pair) for name, *pair in zip(results, results.values(), expected_outputs, strict=True)]
        )
    return tuple(
        OutputDifference(
            entries[0].name,
            sum(entry.count for entry in entries),
            sum(entry.differing for entry in entries),
            max(entry.largest for entry in entries),
        )
        for entries in zip(*per_call, strict=True)
    )


def _difference(name: str, output: Any, expected: Any) -> OutputDifference:
    error = np.abs(output.astype(np.float64) - expected.astype(np.float64))
    return OutputDifference(name, output.size, int((error > 0).sum()), float(error.max(initial=0.0)))
