"""Lowers a captured torch graph to a float ONNX model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from quantry.torchfront.lowering.exported_program import node_meta, program_of
from quantry.torchfront.lowering.scopes import Scope
from quantry.torchfront.lowering.tidy import tidied
from quantry.torchfront.lowering.translation import translate


@dataclass(frozen=True, eq=False)
class Lowered:
    """The float ONNX model of a captured graph, and what ONNX cannot express.

    Attributes:
        model: The model; initializers have the names of the parameters they come from.
        scopes: The scope of every node, by node name.
        signature: How torch flattens the module's arguments and results; None for plain tensors.
        constants: Results that are not tensors, by position among the flattened results.
        arguments: Arguments that are not tensors, by position among the flattened arguments.
        parameters: Names of the initializers that the user's model trains.
        buffers: Names of the initializers that the user's model does not train.
    """

    model: ir.Model
    scopes: Mapping[str, Scope]
    signature: Any
    constants: Mapping[int, Any]
    arguments: Mapping[int, Any] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()


def lower(module: fx.GraphModule, advice: str = "") -> Lowered:
    """Return the float ONNX model of a captured graph.

    Args:
        module: The result of `capture` or ``torch.export.export(...).module()``; it is not changed.
        advice: What to do about an operator that cannot be lowered; by default, which submodules to capture instead.

    Raises:
        ModelError: The graph does not come from torch.export, or has an operator that cannot be lowered.
        MissingExtraError: onnxscript is not installed.
    """
    model, scopes = tidied(*translate(program_of(module), advice), module)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    nodes = module.graph.nodes
    arguments_meta = [node_meta(node) for node in nodes if node.op == "placeholder"]
    results = [leaf for node in nodes if node.op == "output" for leaf in torch.utils._pytree.tree_leaves(node.args[0])]
    return Lowered(
        model=model,
        scopes=scopes,
        signature=getattr(module.graph._codegen, "pytree_info", None),
        constants={index: leaf for index, leaf in enumerate(results) if not isinstance(leaf, fx.Node)},
        arguments={index: value for index, value in enumerate(arguments_meta) if not isinstance(value, torch.Tensor)},
        parameters=frozenset(parameters),
        buffers=frozenset(buffers),
    )
