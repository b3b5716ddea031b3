"""Runs a graph part by part, each part over all samples before the next one begins."""

from collections.abc import Collection
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from quantry.errors import DataError
from quantry.observe import CalibrationData
from quantry.observe.segments import Segment, segment_of, values_used
from quantry.tune.activation_store import ActivationStore
from quantry.tune.execution import CPU_PROVIDER, Provider, open_part
from quantry.tune.threads import in_threads, threads

_MOST_AT_ONCE = 8
"""Samples that run at the same time; each needs memory."""


class Stream:
    """A graph in which every node runs once for each sample, in order; constants of later nodes may still change.

    Only what later nodes still read is kept.

    Args:
        model: The graph.
        data: Samples.
        provider: Where to run.
        store: Keeps what is passed on; the stream owns it.

    Attributes:
        device: None: what is kept is arrays.
    """

    device = None

    def __init__(self, model: ir.Model, data: CalibrationData, provider: Provider, store: ActivationStore) -> None:
        self.model = model
        self._provider = provider
        self._store = store
        self._nodes = list(model.graph)
        self._position = 0
        self._last_use = {value: at for at, node in enumerate(self._nodes) for value in values_used(node)}
        self.samples = 0
        for sample in data:
            for name, array in sample.items():
                store.put(name, self.samples, array.copy())
            self.samples += 1

    def position_of(self, node: str) -> int:
        """Return the place of a node in the order of the graph."""
        return next(at for at, other in enumerate(self._nodes) if other.name == node)

    def advance(self, end: int, show: Collection[str] = ()) -> None:
        """Run the nodes before a place in the order, of those that have not run yet.

        Args:
            end: The place.
            show: Names of tensors to keep until the next call although nobody reads them.
        """
        nodes = self._nodes[self._position : end]
        later = frozenset(value for value, use in self._last_use.items() if use >= end)
        if nodes:
            segment = segment_of(self.model, nodes, frozenset(show), later)
            names = [value.name or "" for value in segment.view.outputs]
            if names:
                self._run(segment, names)
        self._position = max(end, self._position)
        kept = {value.name for value in later} | set(show)
        for name in self._store:
            if name not in kept:
                self._store.drop(name)

    def _run(self, segment: Segment, names: list[str]) -> None:
        """Run a part over all samples, several at once: small parts do not keep more than one thread busy."""
        at_once = min(threads(), _MOST_AT_ONCE, self.samples) if self._provider[0] == CPU_PROVIDER else 1
        session = open_part(segment, self._provider, threads=max(1, threads() // max(1, at_once)))

        def run(first: int) -> None:
            for sample in range(first, self.samples, at_once):
                feeds = {name: self._store.get(name, sample) for name in segment.inputs}
                for name, array in zip(names, _run(session, names, feeds, sample), strict=True):
                    self._store.put(name, sample, array)

        in_threads(run, range(at_once))

    def get(self, name: str, sample: int) -> npt.NDArray[Any]:
        """Return a tensor that is still kept."""
        return self._store.get(name, sample)

    def size(self, name: str) -> int:
        """Return how many numbers a tensor has for the first sample."""
        return self._store.get(name, 0).size

    def close(self) -> None:
        """Let go of everything that is kept."""
        self._store.close()


def _run(session: Any, names: list[str], feeds: dict[str, npt.NDArray[Any]], sample: int) -> list[npt.NDArray[Any]]:
    try:
        return list(session.run(names, feeds))
    except Exception as error:
        # onnxruntime's exceptions share no base class below Exception.
        raise DataError(f"onnxruntime must be able to run the model, got {error}; sample {sample}, in tune") from error
