"""From the layers that a `QConfig` names to what a recipe says of single layers."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from quantry.errors import RecipeError
from quantry.onnx.quantization.config.spec import QLayerConfig, QTensorConfig
from quantry.plan.selected_nodes import matching
from quantry.prepare import model_source
from quantry.recipe import Bias, DataType, DerivedBias, FloatScale, LayerTypes, OwnBias, TensorSpec


def layer_entries(
    where: str, layers: Mapping[QLayerConfig | None, Iterable[Any]], model: Any, *, operators: bool = False
) -> tuple[LayerTypes, ...]:
    """Return what single layers become, in the order in which they are named.

    Args:
        where: The field, for messages.
        layers: Names of layers by what they become; None leaves them float.
        model: The float model, in which pairs of first and last nodes are looked up.
        operators: Whether the names are operator types.

    Raises:
        RecipeError: Something is no name, or a layer's configuration says nothing.
    """
    made = []
    for layer, names in layers.items():
        if layer is not None and not isinstance(layer, QLayerConfig):
            raise RecipeError(f"{where} must have QLayerConfig as keys, got {layer!r}")
        if isinstance(names, str):
            raise RecipeError(f"{where} must have lists of names as values, got {names!r} of type str")
        match = tuple(names) if operators else tuple(_pattern(where, entry, model) for entry in names)
        if match:
            named: dict[str, Any] = {"operators": match} if operators else {"match": match}
            made.append(LayerTypes(**named, **_types(where, layer)))
    return tuple(made)


def bias_of(bias: QTensorConfig, where: str) -> Bias:
    """Return what a bias of this specification is.

    Args:
        bias: The specification.
        where: The field, for messages.
    """
    spec = bias.to_spec(where)
    return DerivedBias() if spec.dtype == DataType.INT32 and isinstance(spec.scale, FloatScale) else OwnBias(spec)


def _types(where: str, layer: QLayerConfig | None) -> dict[str, Any]:
    if layer is None:
        return {"keep_float": True}
    given: dict[str, TensorSpec | Bias] = {}
    for name, spec in (("activation", layer.inputs()), ("output", layer.output_tensors), ("weight", layer.weight)):
        if spec is not None:
            given[name] = spec.to_spec(f"{where}: QLayerConfig.{name}")
    if layer.bias is not None:
        given["bias"] = bias_of(layer.bias, f"{where}: QLayerConfig.bias")
    if not given:
        raise RecipeError(f"{where} must say what layers become, got an empty QLayerConfig; None leaves them float")
    return given


def _pattern(where: str, entry: Any, model: Any) -> str:
    """Return an entry as a name or a pattern."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise RecipeError(f"{where} must hold names or pairs (first nodes, last nodes), got {entry!r}")
    if model is None:
        raise RecipeError(f"{where} can hold pairs only where the model is known, got {entry!r}; use ModelQuantizer")
    nodes = list(model_source(model).load().graph)
    ends = [{found for name in _listed(part) for found in matching(nodes, name, where)} for part in entry]
    between = _reached(ends[0], _successors) & _reached(ends[1], _predecessors)
    if not between:
        raise RecipeError(f"{where} must name nodes joined by a path, got no path from {entry[0]!r} to {entry[1]!r}")
    # One pattern, since preparing may fold some of them away.
    names = (name for node in between for name in (node.name, *(output.name for output in node.outputs)))
    return f"^({'|'.join(sorted(re.escape(name) for name in names if name))})$"


def _listed(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _successors(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def _predecessors(node: ir.Node) -> Iterable[ir.Node]:
    producers = (value.producer() for value in node.inputs if value is not None)
    return (producer for producer in producers if producer is not None)


def _reached(starts: set[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    seen, queue = set(starts), deque(starts)
    while queue:
        fresh = set(step(queue.popleft())) - seen
        seen |= fresh
        queue.extend(fresh)
    return seen
