"""Runs a float or simulated model part by part in torch on a GPU; see `quantry.execute.activation_stream`.

Samples are joined into batches if the model computes each the same way as alone. What one part of the graph passes to
the next stays on the GPU as long as there is room.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from quantry.data.calibration_data import CalibrationData
from quantry.execute.activation_stream import ActivationStore
from quantry.execute.interpreter import TorchCall, interpretable, torch_call
from quantry.execute.joined_samples import Tensors, joined, joins
from quantry.execute.simulation import CONTRIB
from quantry.graph.qdq import is_pair_node, is_quantize
from quantry.graph.segments import values_used
from quantry.numerics.torch_quantizer import round_and_clip

_HELD = {np.dtype(np.int8): torch.int8, np.dtype(np.uint8): torch.uint8, np.dtype(np.int16): torch.int16}
"""Types that store integers; torch cannot compute with uint16, which is stored in 32 bits."""


class NodeRunner:
    """Runs nodes of one model; constants are cached until `forget`.

    Args:
        model: The model.
        device: Where to compute.
    """

    def __init__(self, model: ir.Model, device: str) -> None:
        self._device = device
        self._opset = model.opset_imports.get("", 13)
        self._constants: dict[str, Any] = {}
        self._calls: dict[ir.Node, TorchCall] = {}

    def forget(self) -> None:
        """Drop the cached constants."""
        self._constants.clear()

    def run(self, nodes: Sequence[ir.Node], inputs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Return some outputs of nodes.

        Args:
            nodes: The nodes, in order.
            inputs: Tensors that they read but do not compute.
            names: Names of tensors to return.
        """
        values, keep = dict(inputs), frozenset(names)
        last = {value.name: at for at, node in enumerate(nodes) for value in values_used(node)}
        with torch.no_grad():
            for at, node in enumerate(nodes):
                outputs = self._apply(node, values)
                for value, tensor in zip(node.outputs, outputs, strict=False):
                    values[value.name or ""] = tensor
                for used in node.inputs:
                    name = used.name if used is not None else None
                    if name is not None and last.get(name) == at and name not in keep:
                        values.pop(name, None)
        return {name: values[name] for name in names}

    def _apply(self, node: ir.Node, values: Mapping[str, Any]) -> tuple[Any, ...]:
        if node.domain == CONTRIB:
            arguments = [
                self._value(values, node, value).to(self._device) for value in node.inputs if value is not None
            ]
            if is_quantize(node):
                return (_quantized(node, arguments),)
            integers, scale, zero_point = arguments
            return ((integers.float() - zero_point) * scale,)
        if node not in self._calls:
            self._calls[node] = torch_call(node, self._opset, keep_batch=True)
        call = self._calls[node]
        arguments = [
            self._value(values, node, value) if value is not None and call.reads(index) else None
            for index, value in enumerate(node.inputs)
        ]
        outputs = call(call.on_device(arguments, self._device))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _value(self, values: Mapping[str, Any], node: ir.Node, value: ir.Value) -> Any:
        name = value.name or ""
        if name in values:
            return values[name]
        if name not in self._constants:
            assert value.const_value is not None
            tensor = torch.from_numpy(np.array(value.const_value.numpy()))
            # Sizes and axes stay on the CPU, where Python reads them.
            stays = not tensor.is_floating_point() and node.domain != CONTRIB
            self._constants[name] = tensor if stays else tensor.to(self._device)
        return self._constants[name]


def reason_against(model: ir.Model) -> str | None:
    """Return why a model, or its simulation, cannot run in torch; None if it can."""
    reasons = (None if node.domain == CONTRIB and is_pair_node(node) else interpretable(node) for node in model.graph)
    return next((reason for reason in reasons if reason is not None), None)


def _quantized(node: ir.Node, arguments: list[Any]) -> Any:
    values, scale, zero_point = arguments
    kind = node.inputs[2].const_value.numpy().dtype  # type: ignore[union-attr]
    bounds = np.iinfo(kind)
    # In float32, because the difference of an int8 limit and an int8 zero point would overflow int8.
    offset = zero_point.float()
    levels = round_and_clip(values / scale, int(bounds.min) - offset, int(bounds.max) - offset) + offset
    return levels.to(_HELD.get(kind, torch.int32))


_PART_AT_ONCE, _LARGER = 0.25, 32
"""Share of the GPU's memory for a part of a model while it runs, and the estimate of what it needs per input byte."""

_CPU_BYTES = 2**30


class TensorSamples:
    """The samples of calibration data on a device.

    Args:
        data: The samples.
        model: The graph that reads them; all its nodes are interpretable.
        device: Where they go.

    Attributes:
        device: The device.
        chunks: Numbers of the samples in each batch.
        tensors: Inputs of each batch, by name.
    """

    def __init__(self, data: CalibrationData, model: ir.Model, device: str) -> None:
        self.device = device
        self.chunks: list[range] = []
        self.tensors: list[Tensors] = []
        moved = [{name: torch.from_numpy(array.copy()).to(device) for name, array in sample.items()} for sample in data]
        together = self._together(moved, model)
        while moved:
            count = next((at for at, sample in enumerate(moved) if _shapes(sample) != _shapes(moved[0])), len(moved))
            batch, moved = moved[: min(count, together)], moved[min(count, together) :]
            first = self.chunks[-1].stop if self.chunks else 0
            self.chunks.append(range(first, first + len(batch)))
            self.tensors.append(joined(batch))

    def _together(self, samples: Sequence[Tensors], model: ir.Model) -> int:
        nodes, names, runner = list(model.graph), _fed_names(model), NodeRunner(model, self.device)
        if not joins(samples[:2], lambda inputs: runner.run(nodes, inputs, names)):
            return 1
        largest: int = max(tensor.numel() * tensor.element_size() for tensor in samples[0].values())
        return max(1, room_of(self.device, _PART_AT_ONCE) // max(1, _LARGER * largest))


def room_of(device: str, share: float) -> int:
    """Return a share of a device's memory in bytes."""
    if torch.device(device).type != "cuda":
        return _CPU_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory * share)


def _shapes(sample: Tensors) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in sample.items()}


def _fed_names(model: ir.Model) -> list[str]:
    """Return the tensors that depend on the inputs of a model."""
    fed = set(model.graph.inputs)
    names = []
    for node in model.graph:
        if any(value in fed for value in values_used(node)):
            fed.update(node.outputs)
            names += [value.name for value in node.outputs[:1] if value.name]
    return names


_GPU_PART = 0.25
"""Share of the GPU's memory for one stream; the float and the quantized model have one each."""


class TorchStream:
    """A graph whose nodes run once per sample, in order; constants of later nodes may still change.

    Args:
        model: The graph; all its nodes are interpretable.
        samples: Its inputs.
        store: Keeps what does not fit on the GPU; the stream owns it.

    Attributes:
        device: Where it runs.
    """

    def __init__(self, model: ir.Model, samples: TensorSamples, store: ActivationStore) -> None:
        self.model = model
        device = self.device = samples.device
        self._store = store
        self._nodes = list(model.graph)
        self._runner = NodeRunner(model, device)
        self._position = 0
        self._last_use = {value: at for at, node in enumerate(self._nodes) for value in values_used(node)}
        self._places = {node.name: at for at, node in enumerate(self._nodes)}
        self._room = room_of(device, _GPU_PART) if store.in_memory else 0
        self._held: dict[str, dict[int, Any]] = {}
        self._chunks = samples.chunks
        self.samples = sum(len(chunk) for chunk in self._chunks)
        for number, tensors in enumerate(samples.tensors):
            for name, tensor in tensors.items():
                self._put(name, number, tensor)

    def position_of(self, node: str) -> int:
        """Return the position of a node in the order of the graph."""
        return self._places[node]

    def advance(self, end: int, show: Collection[str] = ()) -> None:
        """Run all nodes before a position that have not run yet.

        Args:
            end: The position.
            show: Names of tensors to keep until the next call even if no node reads them.
        """
        nodes = self._nodes[self._position : end]
        needed = {value.name or "" for value, use in self._last_use.items() if use >= end} | set(show)
        if nodes:
            inputs = [
                name for name in self._names() if any(name == v.name for node in nodes for v in values_used(node))
            ]
            outputs = [v.name for node in nodes for v in node.outputs if v.name and v.name in needed]
            for number in range(len(self._chunks)):
                results = self._runner.run(nodes, {name: self.chunk(name, number) for name in inputs}, outputs)
                for name, tensor in results.items():
                    self._put(name, number, tensor)
        self._runner.forget()
        self._position = max(end, self._position)
        for name in self._names():
            if name not in needed:
                self._drop(name)

    def tensors(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield a tensor that is still kept, one batch at a time, with the numbers of its samples."""
        for number, chunk in enumerate(self._chunks):
            yield chunk, self.chunk(name, number)

    def get(self, name: str, sample: int) -> npt.NDArray[Any]:
        """Return a tensor of one sample that is still kept."""
        number = next(at for at, chunk in enumerate(self._chunks) if sample in chunk)
        chunk, values = self._chunks[number], self.chunk(name, number)
        if len(chunk) > 1:
            share = values.shape[0] // len(chunk)
            values = values[(sample - chunk.start) * share :][:share]
        return _array(values)

    def size(self, name: str) -> int:
        """Return the number of elements of a tensor for the first sample."""
        return int(self.chunk(name, 0).numel()) // len(self._chunks[0])

    def close(self) -> None:
        """Drop everything that is kept."""
        self._held.clear()
        self._store.close()

    def _names(self) -> list[str]:
        return list(dict.fromkeys((*self._held, *self._store)))

    def _put(self, name: str, number: int, tensor: Any) -> None:
        size = tensor.numel() * tensor.element_size()
        if size <= self._room:
            self._room -= size
            self._held.setdefault(name, {})[number] = tensor
        else:
            self._store.put(name, number, _array(tensor))

    def chunk(self, name: str, number: int) -> Any:
        """Return a tensor that is still kept, for one batch."""
        tensor = self._held.get(name, {}).get(number)
        return torch.from_numpy(np.array(self._store.get(name, number))).to(self.device) if tensor is None else tensor

    def _drop(self, name: str) -> None:
        for tensor in self._held.pop(name, {}).values():
            self._room += tensor.numel() * tensor.element_size()
        if name in self._store:
            self._store.drop(name)


def _array(tensor: Any) -> npt.NDArray[Any]:
    # NumPy has no bfloat16, and float32 contains all of its values.
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy())
