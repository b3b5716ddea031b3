"""The module that a user trains, evaluates and exports."""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from quantry.errors import ModelError
from quantry.execute.control_flow import ControlFlow
from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.execute.graph_builder import GraphBuilder, Layout
from quantry.notes import Note
from quantry.torchfront.module_definition import ModuleDefinition

if TYPE_CHECKING:
    from quantry.torchfront.held_out import HeldOutImprovement


class QuantizedModule(fx.GraphModule):  # type: ignore[misc]
    """A torch module that computes what the exported integer model will.

    It is an ordinary module: its parameters have the names of the user's model, the user's own loop trains it, it moves
    between devices, and its ``state_dict`` saves it. ``train()`` and ``eval()`` switch batch normalization as in any
    model; neither changes a scale.

    Attributes:
        definition: What it was built from.
        layout: Where its parts are.
        is_frozen: Whether it is final: normalizations are folded, and it cannot be trained.
        gain: What the last `qat` gained on held-out batches; None before.
    """

    gain: "HeldOutImprovement | None" = None

    def __init__(self, root: nn.Module, graph: fx.Graph, definition: ModuleDefinition, layout: Layout) -> None:
        super().__init__(root, graph, "QuantizedModule")
        # fx copies what the graph itself uses; graphs inside its nodes use more.
        for name, submodule in root.named_children():
            self.add_module(name, submodule)
        for name, parameter in root.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in root.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for submodule in self.modules():
            if isinstance(submodule, ControlFlow):
                submodule.enclose(self)
        self.definition = definition
        self.layout = layout
        self.is_frozen = False
        self._default_constants()

    def recompile(self) -> Any:
        """Compile the graph again, as after a change of it."""
        code = super().recompile()
        if "definition" in self.__dict__:
            self._default_constants()
        return code

    def _default_constants(self) -> None:
        """Let a call leave out trailing arguments that are not tensors: each is a constant of the graph."""
        count = len(self.definition.model.inputs) + len(self.definition.arguments)
        function = type(self).forward  # each instance has a class of its own
        names = list(inspect.signature(function).parameters)[1:]
        if len(names) != count:
            return  # nested arguments, which torch flattens
        defaults: list[Any] = []
        for index in reversed(range(count)):
            if index not in self.definition.arguments:
                break
            defaults.insert(0, self.definition.arguments[index])
        function.__defaults__ = tuple(defaults) or None

    def add_gain(self, gain: "HeldOutImprovement") -> None:
        """Set `gain`, and add it to the notes of the definition."""
        self.gain = gain
        self.definition = replace(self.definition, notes=(*self.definition.notes, Note.of("{gain}", gain=str(gain))))

    def __deepcopy__(self, memo: dict[int, Any]) -> "QuantizedModule":
        rebuilt = build(self.definition)
        memo[id(self)] = rebuilt
        return _restored(rebuilt, copy.deepcopy(_state(self), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.definition, _state(self))

    def _apply(self, function: Callable[[Tensor], Tensor], *arguments: Any) -> "QuantizedModule":
        # torch calls this for to(), half() and cuda(), also for those of an enclosing model.
        dtype = function(torch.empty(0)).dtype
        if dtype != torch.float32:
            raise ModelError(
                f"a quantized module must compute in float32, got a conversion to {str(dtype).removeprefix('torch.')}; "
                "for mixed precision run it within torch.autocast; in QuantizedModule"
            )
        moved: QuantizedModule = super()._apply(function, *arguments)
        return moved

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # torch also calls this when an enclosing model is loaded.
        if self.is_frozen:
            raise ModelError(
                "weights must be loaded before the module is frozen, got a frozen one, whose lookup tables and "
                "exported values would not change; load them into the result of quantize_model; in load_state_dict"
            )
        super()._load_from_state_dict(*arguments)


def build(definition: ModuleDefinition) -> QuantizedModule:
    """Return the module that a definition describes, in training mode, on the CPU."""
    builder = GraphBuilder(definition)
    builder.build()
    return QuantizedModule(builder.root, builder.graph, definition, builder.layout)


def build_in_place_of(
    module: QuantizedModule, definition: ModuleDefinition, weights: Collection[str]
) -> QuantizedModule:
    """Return a module with other weights than a given one, on its device and in evaluation mode.

    Args:
        module: The given module; it is not changed.
        definition: What the new module is built from.
        weights: Weights that differ from those of the given module. Normalizations of their layers are folded, because
            their own unfolded weights are not known.
    """
    norms = {name: norm for name, norm in definition.batch_norms.items() if name not in weights}
    built = build(replace(definition, batch_norms=norms))
    built.to(next((parameter.device for parameter in module.parameters()), torch.device("cpu")))
    built.eval()
    return built


def fake_quantizers(module: QuantizedModule) -> dict[str, FakeQuantizer]:
    """Return the quantizers to integers, by the tensor whose scale they hold."""
    quantizers = {name: module.get_submodule(path) for name, path in module.layout.quantizers.items()}
    return {name: quantizer for name, quantizer in quantizers.items() if isinstance(quantizer, FakeQuantizer)}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode for the duration of a block, then each of its modules back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def require_quantized(module: nn.Module, caller: str) -> None:
    """Raise ModelError if a module is not quantized, and name the submodule that was probably meant."""
    if isinstance(module, QuantizedModule):
        return
    submodules = module.named_modules() if isinstance(module, nn.Module) else ()
    inside = [name for name, submodule in submodules if isinstance(submodule, QuantizedModule)]
    hint = f"whose submodule {inside[0]!r} is quantized: pass that" if inside else "which has none: quantize it first"
    raise ModelError(f"a module must be a result of quantize_model, got {type(module).__name__}, {hint}; in {caller}")


def refuse_quantized(model: nn.Module, caller: str) -> None:
    """Raise ModelError if a model, or a part of it, is already quantized."""
    inside = [name for name, submodule in model.named_modules() if isinstance(submodule, QuantizedModule)]
    if inside:
        description = (
            f"one whose submodule {inside[0]!r} is already quantized" if inside[0] else "one that is already quantized"
        )
        raise ModelError(
            f"a model to quantize must be float, got {description}; train or freeze it instead; in {caller}"
        )


_SWITCHES = "_extra_state"
"""End of the names under which torch saves what ``get_extra_state`` returns."""


def _state(module: QuantizedModule) -> dict[str, Any]:
    trained = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    modes = {name: submodule.training for name, submodule in module.named_modules()}
    tensor = next(iter(module.state_dict(keep_vars=True).values()), None)
    devices = {value.device for value in module.parameters()} or {torch.device("cpu")}
    return {
        "values": {name: value for name, value in module.state_dict().items() if not name.endswith(_SWITCHES)},
        # As numbers: a process that is sent a tensor made only for this message would find its memory gone.
        "switches": {name: value.tolist() for name, value in module.state_dict().items() if name.endswith(_SWITCHES)},
        "trained": trained,
        "modes": modes,
        "is_frozen": module.is_frozen,
        "device": next(iter(devices)) if tensor is not None else torch.device("cpu"),
    }


def _restored(module: QuantizedModule, state: dict[str, Any]) -> QuantizedModule:
    switches = {name: torch.tensor(value) for name, value in state["switches"].items()}
    module.load_state_dict({**state["values"], **switches})
    module.to(state["device"])
    module.is_frozen = state["is_frozen"]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(state["trained"].get(name, True))
    for name, submodule in module.named_modules():
        submodule.training = state["modes"].get(name, module.training)
    return module


def _rebuilt(definition: ModuleDefinition, state: dict[str, Any]) -> QuantizedModule:
    return _restored(build(definition), state)
