"""From an ONNX node to a call of a torch function."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from quantry.execute.interpreter import (
    elementwise,
    indexing,
    movement,
    recurrent,
    reduction,
    resize,
    sampling,
    spectral,
)
from quantry.facts.operators import OPERATORS, STANDARD_DOMAINS, Family, facts

_HERE = "quantry.execute.interpreter."
_SPATIAL_RANKS = (1, 2, 3)

SEVERAL_RESULTS = ("Split", "TopK", "LSTM", "GRU", "RNN")
"""Operators whose function returns a tuple of all outputs."""

# Attributes that do not change what is computed here: the weight has the kernel's shape as well; statistics are
# float32 or better; others only matter in modes, types or outputs that `interpretable` refuses.
_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "Conv": ("kernel_shape",),
    "ConvTranspose": ("kernel_shape",),
    "MaxPool": ("storage_order",),
    "AveragePool": ("dilations",),
    "LpPool": ("dilations", "ceil_mode"),
    "LSTM": ("activations", "input_forget"),
    "GRU": ("activations",),
    "BatchNormalization": ("momentum", "training_mode"),
    "LayerNormalization": ("stash_type",),
    "GroupNormalization": ("stash_type",),
    "Dropout": ("seed",),
    "Cast": ("saturate",),
    "Resize": ("extrapolation_value", "keep_aspect_ratio_policy", "roi"),
}


@dataclass(frozen=True, eq=False)
class TorchCall:
    """A node as a call of a torch function.

    Attributes:
        function: Takes tensors in the order of the node's inputs, and options by name.
        options: The node's attributes and its constant settings, as plain Python values. They are read once, here: a
            training step then waits for no tensor on the device, and ``torch.compile`` sees plain numbers.
        tensors: Indices of the inputs that the function takes as tensors.
        computed: Settings that are only known at run time: index of the input, and name of the option.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    tensors: tuple[int, ...]
    computed: Mapping[int, str] = field(default_factory=dict)

    def reads(self, index: int) -> bool:
        """Whether the call needs an input; constant settings are part of its options already."""
        return index in self.tensors or index in self.computed

    def on_device(self, inputs: Sequence[Any], device: str) -> list[Any]:
        """Return the inputs with all tensors on a device if one of them is there.

        What is computed from shapes alone stays on the CPU, where Python can read it without waiting.
        """
        if all(value is None or value.device.type == "cpu" for value in inputs):
            return list(inputs)
        return [
            value.to(device) if value is not None and index in self.tensors else value
            for index, value in enumerate(inputs)
        ]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the result, or a tuple of results.

        Args:
            inputs: The node's inputs in order, None for an absent one and for settings that are constants.
        """
        options = self.options
        if self.computed:
            read = {name: inputs[index] for index, name in self.computed.items() if index < len(inputs)}
            options = {**options, **{name: value.tolist() for name, value in read.items() if value is not None}}
        return self.function(*(inputs[index] if index < len(inputs) else None for index in self.tensors), **options)


def torch_call(node: ir.Node, opset: int, *, keep_batch: bool = False) -> TorchCall:
    """Return how torch computes a node.

    Args:
        node: A node that is `interpretable`.
        opset: Version of the standard operator set.
        keep_batch: Whether the caller may run a model of batch size 1 on several samples at once. Sizes of 1 that
            Reshape and Resize give to the first axis then keep the batch instead.
    """
    row = OPERATORS[node.op_type]
    ignored = _WITHOUT_EFFECT.get(node.op_type, ())
    options = {name: _plain(attribute) for name, attribute in node.attributes.items() if name not in ignored}
    computed: dict[int, str] = {}
    for index, name in row.setting_at.items():
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or name in ignored:
            continue
        if value.const_value is None:
            computed[index] = name
            continue
        array = value.const_value.numpy()
        # An empty list is how exporters leave out the region or the scales of Resize.
        if array.size or array.ndim == 0 or row.family is not Family.RESIZE:
            options[name] = array.tolist()
    function = torch_function(row.torch)
    if row.family is Family.SOFTMAX and opset < 13:
        # Older softmax runs over all axes from the given one on, as if they were one.
        function = reduction.flat_softmax if node.op_type == "Softmax" else reduction.flat_log_softmax
    if node.op_type == "Split":
        options.setdefault("num_outputs", len(node.outputs))
    if keep_batch and node.op_type in ("Reshape", "Resize"):
        options["keep_batch"] = True
    last = max((index for index, value in enumerate(node.inputs) if value is not None), default=-1)
    tensors = tuple(index for index in range(last + 1) if index not in row.setting_at)
    return TorchCall(function, options, tensors, computed)


def interpretable(node: ir.Node) -> str | None:
    """Return why torch cannot compute a node as onnxruntime does, or None if it can."""
    if node.domain not in STANDARD_DOMAINS:
        return f"operator {node.op_type} is of domain {node.domain}"
    row = facts(node)
    if not row.torch:
        return f"operator {node.op_type} has no function in torch here"
    understood = (*_parameters(row.torch), *_WITHOUT_EFFECT.get(node.op_type, ()))
    unknown = [name for name in node.attributes if name not in understood]
    if unknown:
        return f"{node.op_type} with attribute {unknown[0]} has no function in torch here"
    if (
        any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        and node.op_type not in SEVERAL_RESULTS
    ):
        return f"a further output of {node.op_type} is used"
    refusal = _REFUSALS.get(node.op_type)
    return None if refusal is None else refusal(node)


# Saves an import by name for every node of a model.
@cache
def torch_function(name: str) -> Callable[..., Any]:
    """Return the function that a row of the table names."""
    module, _, function = name.rpartition(".")
    home = importlib.import_module(module if module.startswith("torch") else _HERE + module)
    resolved: Callable[..., Any] = getattr(home, function)
    return resolved


# Saves the inspection of a signature for every node of a model.
@cache
def _parameters(name: str) -> frozenset[str]:
    """Return the names of the options that a function takes; functions of torch take none."""
    if name.startswith("torch."):
        return frozenset()
    return frozenset(inspect.signature(torch_function(name)).parameters)


def _plain(attribute: ir.Attr) -> Any:
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return torch.from_numpy(np.array(value.numpy()))
    return list(value) if isinstance(value, tuple) else value


def _spatial_refusal(node: ir.Node) -> str | None:
    """Convolutions and pools of torch have one to three spatial axes."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is not None and len(shape) - 2 not in _SPATIAL_RANKS:
        return f"{node.op_type} over {len(shape) - 2} axes has no function in torch here"
    return None


def _average_pool_refusal(node: ir.Node) -> str | None:
    if any(step != 1 for step in node.attributes.get_ints("dilations", ())):
        return "AveragePool with dilations has no function in torch here"
    return _spatial_refusal(node)


def _lp_pool_refusal(node: ir.Node) -> str | None:
    if node.attributes.get_int("ceil_mode", 0) or any(step != 1 for step in node.attributes.get_ints("dilations", ())):
        return "LpPool with ceil_mode or dilations has no function in torch here"
    return _spatial_refusal(node)


def _training_refusal(node: ir.Node) -> str | None:
    """BatchNormalization by attribute, and Dropout by its third input, can be asked to train."""
    mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    constant = None if mode is None else mode.const_value
    asked = mode is not None and (constant is None or bool(constant.numpy()))
    if asked or node.attributes.get_int("training_mode", 0) != 0:
        return f"{node.op_type} in training mode has no function in torch here"
    return None


_REFUSALS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "Conv": _spatial_refusal,
    "ConvTranspose": _spatial_refusal,
    "MaxPool": _spatial_refusal,
    "AveragePool": _average_pool_refusal,
    "BatchNormalization": _training_refusal,
    "Dropout": _training_refusal,
    "Cast": elementwise.cast_refusal,
    "Pad": movement.pad_refusal,
    "Constant": movement.constant_refusal,
    "Resize": resize.resize_refusal,
    "LSTM": recurrent.recurrent_refusal,
    "GRU": recurrent.recurrent_refusal,
    "RNN": recurrent.recurrent_refusal,
    "GridSample": sampling.grid_refusal,
    "Col2Im": sampling.column_refusal,
    "LpPool": _lp_pool_refusal,
    "DFT": spectral.transform_refusal,
    "Unique": indexing.unique_refusal,
}
"""Operators some of whose modes torch does not compute."""
