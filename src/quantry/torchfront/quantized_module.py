"""The module a user trains, evaluates and exports."""

import copy
from typing import Any

import torch
from torch import fx, nn

from quantry.torchfront.blueprint import Blueprint
from quantry.torchfront.graph_builder import GraphBuilder, Layout


class QuantizedModule(fx.GraphModule):  # type: ignore[misc]
    """A torch module that computes what the exported integer model will.

    It is an ordinary module: it has parameters, which keep the names of the user's model, is trained by the user's own
    loop, moves between devices, and is saved by its ``state_dict``. ``train()`` and ``eval()`` switch batch
    normalization as in any model; neither touches a scale.

    Attributes:
        blueprint: What it was built from.
        layout: Where its parts are.
        is_frozen: Whether it is final: folded, and no longer trained.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, blueprint: Blueprint, layout: Layout) -> None:
        super().__init__(root, graph, "QuantizedModule")
        self.blueprint = blueprint
        self.layout = layout
        self.is_frozen = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "QuantizedModule":
        twin = build(self.blueprint)
        memo[id(self)] = twin
        return _restored(twin, copy.deepcopy(_state(self), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.blueprint, _state(self))


def build(blueprint: Blueprint) -> QuantizedModule:
    """Return the module that a blueprint describes, in training mode, on the CPU."""
    builder = GraphBuilder(blueprint)
    builder.build()
    return QuantizedModule(builder.root, builder.graph, blueprint, builder.layout)


def _state(module: QuantizedModule) -> dict[str, Any]:
    trained = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    modes = {name: part.training for name, part in module.named_modules()}
    tensor = next(iter(module.state_dict(keep_vars=True).values()), None)
    devices = {value.device for value in module.parameters()} or {torch.device("cpu")}
    return {
        "values": module.state_dict(),
        "trained": trained,
        "modes": modes,
        "is_frozen": module.is_frozen,
        "device": next(iter(devices)) if tensor is not None else torch.device("cpu"),
    }


def _restored(module: QuantizedModule, state: dict[str, Any]) -> QuantizedModule:
    module.load_state_dict(state["values"])
    module.to(state["device"])
    module.is_frozen = state["is_frozen"]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(state["trained"].get(name, True))
    for name, part in module.named_modules():
        part.training = state["modes"].get(name, module.training)
    return module


def _rebuilt(blueprint: Blueprint, state: dict[str, Any]) -> QuantizedModule:
    return _restored(build(blueprint), state)
