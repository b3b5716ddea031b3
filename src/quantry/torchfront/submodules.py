"""Exports quantized modules inside a larger float model.

While the float model is captured, each quantized module is replaced by a single operator, a "region". Afterwards the
float graph of the module takes the place of the region in the captured graph, together with its plan and parameters.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from quantry.errors import RecipeError
from quantry.graph.passes import convert_opset
from quantry.graph.quant_plan import ActivationPlan, BiasPlan, DerivedBiasPlan, QuantPlan, SharedRange
from quantry.numerics.tensor_params import QuantParams
from quantry.torchfront.freezing import freeze
from quantry.torchfront.module_definition import ModuleDefinition
from quantry.torchfront.quantized_module import QuantizedModule

OPERATOR = "Region"
DOMAIN = "quantry.region"


class _RegionCall(nn.Module):  # type: ignore[misc]
    """Stands for a quantized module in a captured graph.

    Attributes:
        key: Path of the module.
        results: What the module returned for the example.
        batch: First size of the example.
    """

    def __init__(self, key: str, results: Any, batch: int) -> None:
        super().__init__()
        self.key, self.batch = key, batch
        leaves, self._form = tree_flatten(results)
        self._leaves = [torch.empty_like(leaf, device="meta") for leaf in leaves]

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        inputs = [leaf for leaf in tree_leaves((arguments, keywords)) if torch.is_tensor(leaf)]
        first = inputs[0].shape[0]
        shapes = [
            [first if size == self.batch and not axis else size for axis, size in enumerate(leaf.shape)]
            for leaf in self._leaves
        ]
        results = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{OPERATOR}",
            inputs,
            {"key": self.key},
            dtypes=[leaf.dtype for leaf in self._leaves],
            shapes=shapes,
            version=1,
        )
        return tree_unflatten(list(results), self._form)


@contextmanager
def region_operators(
    model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[dict[str, QuantizedModule]]:
    """Replace the quantized submodules by operators for the duration of a block.

    Args:
        model: The enclosing model.
        arguments: An example; the shapes of the submodules' results are known only after they have run.
        keywords: Its keyword arguments.

    Yields:
        The quantized modules by their path in the model.
    """
    modules = _inside(model)
    results: dict[str, tuple[Any, int]] = {}

    def record(key: str) -> Any:
        def hook(_: nn.Module, inputs: Any, keywords: Any, result: Any) -> None:
            first = next(leaf for leaf in tree_leaves((inputs, keywords)) if torch.is_tensor(leaf))
            results[key] = result, first.shape[0]

        return hook

    hooks = [module.register_forward_hook(record(key), with_kwargs=True) for key, module in modules.items()]
    try:
        with torch.no_grad():
            model(*arguments, **keywords)
    finally:
        for hook in hooks:
            hook.remove()
    try:
        for key, (result, batch) in results.items():
            _replace(model, key, _RegionCall(key, result, batch))
        yield modules
    finally:
        for key in results:
            _replace(model, key, modules[key])


@contextmanager
def frozen_inside(model: nn.Module) -> Iterator[None]:
    """Replace the quantized submodules by their frozen forms for the duration of a block."""
    modules = _inside(model)
    try:
        for name, module in modules.items():
            _replace(model, name, module if module.is_frozen else freeze(module))
        yield
    finally:
        for name, module in modules.items():
            _replace(model, name, module)


def _inside(model: nn.Module) -> dict[str, QuantizedModule]:
    modules = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedModule)}
    return {
        name: module for name, module in modules.items() if not any(name.startswith(f"{outer}.") for outer in modules)
    }


def _replace(model: nn.Module, path: str, replacement: nn.Module) -> None:
    holder, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(holder), leaf, replacement)


@dataclass
class MergedModel:
    """A float model into which graphs of quantized modules are inserted.

    Attributes:
        model: The float model; edited in place.
        plan: Which of its tensors are quantized.
        params: Their scales and zero points.
    """

    model: ir.Model
    plan: QuantPlan = field(default_factory=QuantPlan)
    params: QuantParams = field(default_factory=QuantParams)

    def insert(self, region: ir.Node, definition: ModuleDefinition) -> None:
        """Replace a region by the graph of its module.

        Args:
            region: The node that represents the module.
            definition: Definition of the frozen module.

        Raises:
            RecipeError: The module's graph has another operator set.
        """
        inner = definition.model.model.clone()
        inside, outer = inner.opset_imports[""], self.model.opset_imports[""]
        if inside > outer:
            raise RecipeError(
                f"a quantized submodule must have at most the operator set {outer} of the enclosing model, got "
                f"{inside}; leave prepare.opset unset; in export"
            )
        if inside < outer:
            inner = convert_opset(inner, outer)
        renamed = self._move_nodes(region, inner)
        self._merge(definition, *renamed)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename tensors in the graph, the plan and the parameters."""
        for value in (*self.model.graph.inputs, *_values(self.model.graph)):
            value.name = names.get(value.name or "", value.name)
        self.plan = renamed_plan(self.plan, names, {})
        params = {names.get(name, name): entry for name, entry in self.params.tensors.items()}
        self.params = QuantParams(params, self.params.notes)

    def _move_nodes(self, region: ir.Node, inner: ir.Model) -> tuple[dict[str, str], dict[str, str]]:
        graph = self.model.graph
        used_names = {value.name or "" for value in (*graph.inputs, *_values(graph))}
        used_names |= {node.name or "" for node in graph}
        tensors: dict[str, str] = {}
        feeds = [value for value in inner.graph.inputs if value.name not in inner.graph.initializers]
        for source, feed in zip(region.inputs, feeds, strict=True):
            assert source is not None
            outer = _exclusive(source, region, graph, used_names)
            tensors[feed.name or ""] = outer.name or ""
            feed.replace_all_uses_with(outer)
        for value in _values(inner.graph):
            old = value.name or ""
            value.name = tensors[old] = _fresh(old, used_names)
        nodes = {node.name or "": _fresh(node.name or node.op_type, used_names) for node in inner.graph}
        results = list(inner.graph.outputs)
        inner.graph.outputs.clear()
        for value in list(inner.graph.initializers.values()):
            inner.graph.initializers.pop(value.name or "", None)
            graph.register_initializer(value)
        moved = list(inner.graph)
        inner.graph.remove(moved)
        for node in moved:
            node.name = nodes[node.name or ""]
        graph.insert_before(region, moved)
        for old_value, result in zip(region.outputs, results, strict=True):
            _replace_output(graph, old_value, result, tensors)
        graph.remove(region, safe=True)
        return tensors, nodes

    def _merge(self, definition: ModuleDefinition, tensors: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        plan = renamed_plan(definition.plan, tensors, nodes)
        tables = ("activations", "weights", "biases", "conversions")
        merged: dict[str, Any] = {name: {**getattr(self.plan, name), **getattr(plan, name)} for name in tables}
        self.plan = QuantPlan(
            **merged,
            quantized_nodes=(*self.plan.quantized_nodes, *plan.quantized_nodes),
            declined=(*self.plan.declined, *plan.declined),
            notes=(*self.plan.notes, *plan.notes),
        )
        params = {tensors.get(name, name): entry for name, entry in definition.params.tensors.items()}
        self.params = QuantParams({**self.params.tensors, **params}, (*self.params.notes, *definition.params.notes))


def regions(model: ir.Model) -> dict[str, ir.Node]:
    """Return the nodes that represent quantized submodules, by the path of the module."""
    return {node.attributes["key"].as_string(): node for node in model.graph if node.domain == DOMAIN}


def renamed_plan(plan: QuantPlan, tensors: Mapping[str, str], nodes: Mapping[str, str]) -> QuantPlan:
    """Return the plan of a graph whose tensors and nodes were renamed."""

    def tensor(name: str) -> str:
        return tensors.get(name, name)

    def activation(entry: ActivationPlan) -> ActivationPlan:
        return SharedRange(tensor(entry.source)) if isinstance(entry, SharedRange) else entry

    def bias(entry: BiasPlan) -> BiasPlan:
        if isinstance(entry, DerivedBiasPlan):
            return DerivedBiasPlan(tensor(entry.input), tensor(entry.weight))
        return entry

    def keywords(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(nodes.get(name, name) for name in names)

    return QuantPlan(
        activations={tensor(name): activation(entry) for name, entry in plan.activations.items()},
        weights={tensor(name): replace(entry, users=keywords(entry.users)) for name, entry in plan.weights.items()},
        biases={tensor(name): bias(entry) for name, entry in plan.biases.items()},
        quantized_nodes=keywords(plan.quantized_nodes),
        declined=tuple(replace(entry, node=nodes.get(entry.node, entry.node)) for entry in plan.declined),
        conversions={
            name: replace(entry, tensor=tensor(entry.tensor), readers=keywords(entry.readers))
            for name, entry in plan.conversions.items()
        },
        notes=plan.notes,
    )


def _exclusive(source: ir.Value, region: ir.Node, graph: ir.Graph, used_names: set[str]) -> ir.Value:
    """Return a value that only the region reads, so that quantizing it does not affect the float part."""
    if all(use.node is region for use in source.uses()) and not source.is_graph_output():
        return source
    copy = ir.node("Identity", [source], name=_fresh(f"{source.name}_copy", used_names))
    copy.outputs[0].name = _fresh(f"{source.name}_copy_output", used_names)
    copy.outputs[0].type, copy.outputs[0].shape = source.type, source.shape
    graph.insert_before(region, [copy])
    for index, value in enumerate(region.inputs):
        if value is source:
            region.replace_input_with(index, copy.outputs[0])
    return copy.outputs[0]


def _replace_output(graph: ir.Graph, old: ir.Value, result: ir.Value, tensors: dict[str, str]) -> None:
    for use in tuple(old.uses()):
        use.node.replace_input_with(use.idx, result)
    if not old.is_graph_output():
        return
    inner_name, name = result.name or "", old.name or ""
    old.name, result.name = f"{name}_region", name
    result.type = result.type or old.type
    for inner, outer in tensors.items():
        if outer == inner_name:
            tensors[inner] = name
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = result


def _values(graph: ir.Graph) -> list[ir.Value]:
    outputs = [output for node in graph for output in node.outputs]
    return [*graph.initializers.values(), *outputs]


def _fresh(name: str, used_names: set[str]) -> str:
    candidate, count = name, 1
    while candidate in used_names:
        count += 1
        candidate = f"{name}_{count}"
    used_names.add(candidate)
    return candidate
