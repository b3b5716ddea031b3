"""Runs a graph part by part in torch, on a GPU, with what is passed on kept there; see `quantry.tune.stream`.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from quantry.observe.segments import values_used
from quantry.tune.activation_store import ActivationStore
from quantry.tune.tensor_part import TensorPart
from quantry.tune.tensor_samples import TensorSamples, room_of

_GPU_PART = 0.25
"""Of the memory of the GPU; the float and the quantized model keep as much each."""


class TensorStream:
    """A graph in which every node runs once for each sample, in order; constants of later nodes may still change.

    Args:
        model: The graph; all its nodes are interpretable.
        samples: What it is fed.
        store: Keeps what is passed on where the GPU has no room for it; the stream owns it.

    Attributes:
        device: Where it runs.
    """

    def __init__(self, model: ir.Model, samples: TensorSamples, store: ActivationStore) -> None:
        self.model = model
        device = self.device = samples.device
        self._store = store
        self._nodes = list(model.graph)
        self._part = TensorPart(model, device)
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
        """Return the place of a node in the order of the graph."""
        return self._places[node]

    def advance(self, end: int, show: Collection[str] = ()) -> None:
        """Run the nodes before a place in the order, of those that have not run yet.

        Args:
            end: The place.
            show: Names of tensors to keep until the next call although nobody reads them.
        """
        nodes = self._nodes[self._position : end]
        kept = {value.name or "" for value, use in self._last_use.items() if use >= end} | set(show)
        if nodes:
            given = [name for name in self._names() if any(name == v.name for node in nodes for v in values_used(node))]
            made = [v.name for node in nodes for v in node.outputs if v.name and v.name in kept]
            for number in range(len(self._chunks)):
                found = self._part.run(nodes, {name: self.chunk(name, number) for name in given}, made)
                for name, tensor in found.items():
                    self._put(name, number, tensor)
        self._part.forget()
        self._position = max(end, self._position)
        for name in self._names():
            if name not in kept:
                self._drop(name)

    def tensors(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield a tensor that is still kept, some samples at a time along its first axis, with their numbers."""
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
        """Return how many numbers a tensor has for the first sample."""
        return int(self.chunk(name, 0).numel()) // len(self._chunks[0])

    def close(self) -> None:
        """Let go of everything that is kept."""
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
        """Return a tensor that is still kept, for one chunk of the samples."""
        held = self._held.get(name, {}).get(number)
        return torch.from_numpy(np.array(self._store.get(name, number))).to(self.device) if held is None else held

    def _drop(self, name: str) -> None:
        for tensor in self._held.pop(name, {}).values():
            self._room += tensor.numel() * tensor.element_size()
        if name in self._store:
            self._store.drop(name)


def _array(tensor: Any) -> npt.NDArray[Any]:
    # numpy has no bfloat16; all its numbers are numbers of float32 too.
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy())
