"""Turns the graph that torch's exporter writes into one that the stages read well.

The exporter computes types and shapes at run time, splits into sequences, and names nodes after decomposed operators.
Here constants are folded, parameters that are only read transposed are stored so, sizes become constants where all but
one are known, and nodes and tensors get the names of the user's modules and of the captured graph.
"""

import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from torch import fx
from torch.export import ExportedProgram

from quantry.facts.operators import BIASED
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.shapes.known_values import KnownValues, Sizes, axes_of
from quantry.graph.weights import new_initializer
from quantry.torchfront.lowering.scopes import Scope, captured_name, scope_of
from quantry.torchfront.quant_stubs import nodes_outside

_ROUNDS = 3
"""Folding one shape reveals the next; more rounds change nothing in any model of tests or benchmarks."""

_CAPTURED = "quantry.captured"
"""Metadata of a node: the name of the captured node it comes from."""

OPSET = 18
"""What the exporter writes; a graph of nothing but quantized modules imports none."""

_SCALE_INPUT, _SIZES_INPUT = 2, 3


def tidied(model: ir.Model, program: ExportedProgram, captured: fx.GraphModule) -> tuple[ir.Model, dict[str, Scope]]:
    """Return a translated model in its final form, and the scope of every node by its name.

    Args:
        model: The result of `translate`; it is changed.
        program: The decomposed program that it comes from.
        captured: The captured graph, whose weights the model gets.
    """
    origins = _origins(program, captured)
    _mark(model.graph, origins)
    _agree_on_versions(model)
    common.InlinePass()(model)
    _name_results(model.graph, origins)
    _fill_in(model.graph, captured)
    _transpose_parameters(model.graph)
    _fold(model)
    _drop_zero_biases(model.graph, {name for name, _ in captured.named_parameters()})
    common.RemoveUnusedNodesPass()(model)
    _name_batch(model.graph)
    infer_shapes(model)
    _pool_globally(model.graph)
    _fix_sizes(model.graph)
    common.RemoveUnusedNodesPass()(model)
    _separate_outputs(model.graph)
    used = {node.domain for node in model.graph.all_nodes()} | {""}
    for domain in set(model.opset_imports) - used:
        del model.opset_imports[domain]
    model.opset_imports.setdefault("", OPSET)
    scopes = _name_nodes(model.graph, {origin.name: origin.scope for origin in origins.values()})
    return model, scopes


def _agree_on_versions(model: ir.Model) -> None:
    """Give the domains of the model's own functions one version: torch writes another one inside nested graphs."""
    imports = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    for domain in {domain for domain, _, _ in model.functions}:
        for versions in imports:
            if domain in versions:
                versions[domain] = 1


# -- names -------------------------------------------------------------------------------------------------------------


class _Origin:
    """Where a node of the decomposed program comes from: the name of a captured node, its result, and its scope."""

    def __init__(self, name: str, result: str, scope: Scope) -> None:
        self.name, self.result, self.scope = name, result, scope


def _origins(program: ExportedProgram, captured: fx.GraphModule) -> dict[str, _Origin]:
    captured_nodes = {node.name: node for node in captured.graph.nodes}
    outside = nodes_outside(captured.graph)
    origins = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        source = captured_name(node)
        result = source
        if node.target is operator.getitem and source in captured_nodes:
            # One of several results of an operator: the captured graph has a node of its own for it.
            users = (user for user in captured_nodes[source].users if user.target is operator.getitem)
            result = next((user.name for user in users if user.args[1] == node.args[1]), source)
        origins[node.name] = _Origin(source, result, replace(scope_of(node), outside=source in outside))
    return origins


def _mark(graph: ir.Graph, origins: dict[str, _Origin]) -> None:
    """Note at every node which captured node it comes from, because folding replaces nodes."""
    for node in graph.all_nodes():
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
        name = scopes.rstrip("]").rpartition("'")[0].rpartition("'")[2]
        node.metadata_props.clear()
        if name in origins:
            node.metadata_props[_CAPTURED] = origins[name].name


def _name_results(graph: ir.Graph, origins: dict[str, _Origin]) -> None:
    """Give the last tensor of each captured node the name of that node."""
    values = {output.name: output for node in graph for output in node.outputs}
    last = {origin.result: values[name] for name, origin in origins.items() if name in values}
    renamed = set(last.values())
    used_names = {value.name for value in values.values() if value not in renamed}
    used_names |= {*(value.name for value in graph.inputs), *graph.initializers}
    for result, value in last.items():
        name, count = result, 0
        while name in used_names:
            count += 1
            name = f"{result}_{count}"
        value.name = name
        used_names.add(name)


def _name_nodes(graph: ir.Graph, scopes: dict[str, Scope]) -> dict[str, Scope]:
    """Name nodes after module, captured node and operator, as in ``stem.conv/conv2d_conv``; return their scopes."""
    scope_by_name: dict[str, Scope] = {}
    previous = ""
    for node in graph.all_nodes():
        # A node that folding has written has the origin of the node before it.
        previous = node.metadata_props.pop(_CAPTURED, previous)
        scope = scopes.get(previous, Scope("", ()))
        label = f"{previous or 'node'}_{node.op_type.lower()}"
        path = f"{scope.path}/{label}" if scope.path else label
        name, count = path, 0
        while name in scope_by_name:
            count += 1
            name = f"{path}_{count}"
        node.name = name
        scope_by_name[name] = scope
    return scope_by_name


def _separate_outputs(graph: ir.Graph) -> None:
    """Copy outputs that are inputs, constants or outputs already, because ONNX wants every output computed once."""
    outputs_so_far: set[ir.Value] = set()
    for index, value in enumerate(graph.outputs):
        if value.producer() is None or value in outputs_so_far:
            copy = ir.node("Identity", [value])
            copy.outputs[0].name = f"output_{index}"
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            graph.append(copy)
            graph.outputs[index] = copy.outputs[0]
        outputs_so_far.add(value)


def _name_batch(graph: ir.Graph) -> None:
    """Name a dynamic first axis "batch" wherever it occurs."""
    names: dict[str, str | None] = {}
    for value in graph.inputs:
        first = value.shape[0] if value.shape is not None and len(value.shape) else 0
        if isinstance(first, ir.SymbolicDim) and first.value is not None:
            names.setdefault(first.value, "batch" if not names else f"batch_{len(names) + 1}")
    for value in (*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)):
        if value.shape is not None and not value.shape.is_static():
            dims = [dim if isinstance(dim, int) else names.get(dim.value or "", dim.value) for dim in value.shape]
            value.shape = ir.Shape(dims)


# -- weights -----------------------------------------------------------------------------------------------------------


def _fill_in(graph: ir.Graph, captured: fx.GraphModule) -> None:
    """Copy the weights that the captured graph has now: its program has those of the capture."""
    weights = dict(
        (*captured.named_parameters(remove_duplicate=False), *captured.named_buffers(remove_duplicate=False))
    )
    for name, value in graph.initializers.items():
        tensor = weights.get(name)
        if tensor is None and value.const_value is not None:
            array = np.array(value.const_value.numpy())
        else:
            assert isinstance(tensor, torch.Tensor)
            array = np.array(tensor.detach().cpu().numpy())
        value.const_value = ir.tensor(array, name=name)


def _transpose_parameters(graph: ir.Graph) -> None:
    """Store a parameter transposed if it is read so, as by a linear layer of more than two axes.

    The stages fold a Transpose of a constant anyway, but the result would not have the parameter's name.
    """
    for node in tuple(graph.all_nodes()):
        source = node.inputs[0] if node.op_type == "Transpose" and node.graph is not None else None
        if source is None or not source.is_initializer() or source.const_value is None:
            continue
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
        array = np.ascontiguousarray(np.transpose(source.const_value.numpy(), order))
        other_readers = [use.node for use in source.uses() if not _is_same_transpose(use.node, order)]
        alike = [use.node for use in source.uses() if _is_same_transpose(use.node, order)]
        name = source.name or ""
        if other_readers:  # An embedding, for example, whose weight is also that of the last layer.
            name = f"{name}_transposed"
        else:
            graph.initializers.pop(name)
            source.name = None
        fresh = new_initializer(name, array)
        graph.register_initializer(fresh)
        for same in alike:
            same.outputs[0].replace_all_uses_with(fresh, replace_graph_outputs=True)
            assert same.graph is not None
            same.graph.remove(same, safe=True)


def _is_same_transpose(node: ir.Node, order: Any) -> bool:
    permutation = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
    return node.op_type == "Transpose" and permutation == order


def _drop_zero_biases(graph: ir.Graph, parameters: set[str]) -> None:
    """Remove the zeros that the exporter writes for layers without a bias."""
    for node in graph.all_nodes():
        bias = node.inputs[2] if node.op_type in BIASED and len(node.inputs) > 2 else None
        if bias is None or bias.const_value is None or bias.name in parameters:
            continue
        if not bias.const_value.numpy().any():
            node.resize_inputs(2)


# -- constants and sizes -----------------------------------------------------------------------------------------------


def _fold(model: ir.Model) -> None:
    """Fold types, shapes and sequences. What is computed from weights is left to the prepare stage."""
    from onnxscript import optimizer

    learned = {value for value in model.graph.initializers.values() if value.name}

    def should_fold(node: ir.Node) -> bool | None:
        return False if any(value in learned for value in node.inputs) else None

    for _ in range(_ROUNDS):
        if not optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=should_fold):
            break
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)


def _pool_globally(graph: ir.Graph) -> None:
    """Write adaptive pooling to one value as GlobalAveragePool, which integer kernels and NPUs have."""
    for node in graph.all_nodes():
        source, axes = node.inputs[0] if node.inputs else None, node.inputs[1] if len(node.inputs) > 1 else None
        if node.op_type != "ReduceMean" or not node.metadata_props.get(_CAPTURED, "").startswith("adaptive_avg_pool"):
            continue
        rank = 0 if source is None or source.shape is None else len(source.shape)
        pooled_axes = None if axes is None or axes.const_value is None else {*(axes.const_value.numpy() % max(rank, 1))}
        if pooled_axes == {*range(2, rank)} and node.attributes.get_int("keepdims", 1) == 1:
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            node.resize_inputs(1)


def _fix_sizes(graph: ir.Graph) -> None:
    """Make sizes of Reshape, Expand and Resize constants where ONNX can express the rest as "what remains"."""
    known_values = KnownValues()
    for node in tuple(graph):
        known_values.follow(node)
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None:
            rewrite(graph, node, known_values)


def _fix_reshape(graph: ir.Graph, node: ir.Node, known_values: KnownValues) -> None:
    target_sizes, axes = _open_sizes(node, 1, known_values), axes_of(node.inputs[0])
    if target_sizes is None:
        return
    sizes: list[int | None] = []
    for index, size in enumerate(target_sizes):
        same = axes is not None and index < len(axes) and axes[index] == size
        sizes.append(0 if same and size.number is None else size.number)
    if sizes.count(None) + sizes.count(-1) > 1 or any(size.number == 0 for size in target_sizes):
        return
    node.attributes.pop("allowzero", None)
    _set_ints(graph, node, 1, [-1 if size is None else size for size in sizes])


def _fix_expand(graph: ir.Graph, node: ir.Node, known_values: KnownValues) -> None:
    target_sizes, axes = _open_sizes(node, 1, known_values), axes_of(node.inputs[0])
    if target_sizes is None or axes is None:
        return
    aligned = (*[None] * (len(target_sizes) - len(axes)), *axes[-len(target_sizes) :])
    sizes = [1 if have == size else size.number for size, have in zip(target_sizes, aligned, strict=True)]
    if None not in sizes:
        _set_ints(graph, node, 1, [size for size in sizes if size is not None])


def _fix_resize(graph: ir.Graph, node: ir.Node, known_values: KnownValues) -> None:
    """Replace sizes, one of which is the batch, by factors, or by the sizes of the other axes."""
    target_sizes = _open_sizes(node, _SIZES_INPUT, known_values) if len(node.inputs) > _SIZES_INPUT else None
    axes = axes_of(node.inputs[0])
    if target_sizes is None or axes is None or len(axes) != len(target_sizes):
        return
    resized: dict[int, tuple[int, int]] = {}
    for at, (size, have) in enumerate(zip(target_sizes, axes, strict=True)):
        if size != have:
            if size.number is None or have.number is None:
                return
            resized[at] = size.number, have.number
    factors = np.ones(len(axes), np.float32)
    for at, (goal, length) in resized.items():
        factors[at] = np.float32(goal) / np.float32(length)
    # Runtimes multiply in float32 or in double; NPUs and older tools only read factors.
    if all(_gives(factors[at], *sizes) for at, sizes in resized.items()):
        value = new_initializer(f"{node.outputs[0].name}_factors", factors)
        graph.register_initializer(value)
        node.replace_input_with(_SCALE_INPUT, value)
        node.resize_inputs(_SIZES_INPUT)
        return
    node.attributes["axes"] = ir.AttrInt64s("axes", sorted(resized))
    _set_ints(graph, node, _SIZES_INPUT, [goal for _, (goal, _) in sorted(resized.items())])


def _gives(factor: np.float32, goal: int, length: int) -> bool:
    return math.floor(factor * np.float32(length)) == goal == math.floor(float(factor) * length)


def _open_sizes(node: ir.Node, index: int, known_values: KnownValues) -> Sizes | None:
    """Return the elements of an input that says sizes and is computed."""
    value = node.inputs[index]
    return None if value is None or value.const_value is not None else known_values.of(value)


def _set_ints(graph: ir.Graph, node: ir.Node, index: int, numbers: list[int]) -> None:
    value = new_initializer(f"{node.outputs[0].name}_sizes", np.array(numbers, np.int64))
    graph.register_initializer(value)
    node.replace_input_with(index, value)


_REWRITES = {"Reshape": _fix_reshape, "Expand": _fix_expand, "Resize": _fix_resize}
