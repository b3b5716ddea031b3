"""Everything that a quantized torch module is built from.

It consists of values only, so a module can be copied, pickled and rebuilt from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from torch.utils._pytree import treespec_dumps, treespec_loads

from quantry.execute.batch_norm_layer import BatchNormOf
from quantry.execute.graph_builder import GraphDefinition
from quantry.facts.operators import BIASED, output_channel_axis
from quantry.graph.float_model import FloatModel
from quantry.graph.load import read_model
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.save import serialize
from quantry.memo import Blob
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Recipe, from_plain, to_plain
from quantry.torchfront.undo_conversions import OriginalNode


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleDefinition(GraphDefinition):
    """What a quantized module is built from: its graph, and what the functions of this room need to know of it.

    Attributes:
        recipe: The user's recipe.
        original_weights: Values of initializers before tuning steps and NPU conversions changed them.
        original_nodes: Nodes before NPU conversions changed their function, by name.
        notes: Messages for the user.
    """

    recipe: Recipe
    original_weights: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    original_nodes: Mapping[str, OriginalNode] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("original_weights", "original_nodes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs and read-only mappings cannot be pickled, but their serialized forms can.
        params = self.params.to_blob()
        plain = {
            "model": (serialize(self.model.model), self.model.notes),
            "plan": dict(self.plan.to_blob().meta),
            "params": (dict(params.meta), dict(params.arrays)),
            "recipe": to_plain(self.recipe),
            "batch_norms": dict(self.batch_norms),
            "arrays": dict(self.arrays),
            "original_weights": dict(self.original_weights),
            "original_nodes": dict(self.original_nodes),
            "frozen": self.frozen,
            "trained": self.trained,
            "signature": _packed(self.signature),
            "constants": dict(self.constants),
            "arguments": dict(self.arguments),
            "final": self.final,
            "notes": self.notes,
        }
        return _restored, (plain,)


def _packed(signature: Any) -> tuple[Any, ...] | None:
    """Return torch's description of arguments and results as text, because its classes cannot be pickled."""
    if signature is None:
        return None
    names, *specs = signature
    return type(signature), names, *(treespec_dumps(spec) for spec in specs)


def _unpacked(packed: tuple[Any, ...] | None) -> Any:
    if packed is None:
        return None
    kind, names, *texts = packed
    return kind(names, *(treespec_loads(text) for text in texts))


def _restored(plain: dict[str, Any]) -> ModuleDefinition:
    model, notes = plain["model"]
    values = {
        "model": FloatModel(read_model(model), notes),
        "plan": QuantPlan.from_blob(Blob(plain["plan"])),
        "params": QuantParams.from_blob(Blob(*plain["params"])),
        "recipe": from_plain(plain["recipe"]),
        "signature": _unpacked(plain["signature"]),
    }
    return ModuleDefinition(**{**plain, **values})


def find_batch_norms(
    original: ir.Model, prepared: FloatModel, final: FloatModel
) -> tuple[dict[str, BatchNormOf], dict[str, npt.NDArray[np.float32]]]:
    """Return the normalizations that were folded and can still be trained on their own.

    If equalization or tuning changed a layer after folding, its running statistics no longer describe it.

    Args:
        original: The user's model, with its BatchNormalization nodes.
        prepared: The same model after folding.
        final: The model that is quantized.

    Returns:
        Normalizations by the name of the layer's weight, and the values of the initializers they need.
    """
    norms: dict[str, BatchNormOf] = {}
    arrays: dict[str, npt.NDArray[np.float32]] = {}
    for node in original.graph:
        layer = _layer_before(node)
        if layer is None:
            continue
        weight, bias = layer.inputs[1], layer.inputs[2] if len(layer.inputs) > 2 else None
        assert weight is not None
        name = weight.name or ""
        if not _same_weight(name, prepared.model, final.model) or _same_weight(name, original, final.model):
            continue  # changed after folding, or never folded
        values = [value for value in (weight, bias, *node.inputs[1:5]) if value is not None]
        if any(value.const_value is None for value in values):
            continue
        arrays |= {value.name or "": _floats(value) for value in values}
        names = [value.name or "" for value in node.inputs[1:5] if value is not None]
        numbers = (node.attributes.get_float("epsilon", 1e-5), 1.0 - node.attributes.get_float("momentum", 0.9))
        norms[name] = BatchNormOf(
            None if bias is None else bias.name, (names[0], names[1], names[2], names[3]), *numbers
        )
    return norms, arrays


def _layer_before(node: ir.Node) -> ir.Node | None:
    if node.op_type != "BatchNormalization" or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    layer = source.producer()
    if layer is None or layer.op_type not in BIASED or len(source.uses()) > 1 or source.is_graph_output():
        return None
    # `BatchNormLayer` multiplies the first axis of a weight, so that must be the output channels.
    weight = layer.inputs[1]
    rank = 0 if weight is None or weight.shape is None else len(weight.shape)
    return layer if rank and output_channel_axis(layer, rank) == 0 else None


def _same_weight(name: str, first: ir.Model, second: ir.Model) -> bool:
    values = [model.graph.initializers.get(name) for model in (first, second)]
    if any(value is None or value.const_value is None for value in values):
        return False
    arrays = [_floats(value) for value in values if value is not None]
    return arrays[0].shape == arrays[1].shape and bool((arrays[0] == arrays[1]).all())


def _floats(value: ir.Value) -> npt.NDArray[np.float32]:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy(), np.float32)
