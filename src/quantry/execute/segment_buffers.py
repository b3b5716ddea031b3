"""Where the outputs of segments go: memory that is allocated once and written again and again.

Writing to memory that is already mapped is several times faster than to fresh memory, whose pages the system clears
first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantry.data.conform import Sample
from quantry.graph.segments import Lengths, Segment, TensorType

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Array = npt.NDArray[Any]
_ALIGNMENT = 64


class SegmentBuffers:
    """Buffers for all segments, for inputs of given shapes.

    What segments show goes to one of two pools that take turns: inference writes one while the other is read. What they
    pass on lies in a third, where places are used again after the last segment that takes a tensor. Outputs whose
    shapes are not known beforehand get fresh memory at each run.

    Args:
        segments: The segments.
        types: Inferred types of tensors, by name.
        lengths: Lengths of the symbolic axes.
        sample: A sample; others must have the same shapes.
    """

    def __init__(
        self, segments: Sequence[Segment], types: Mapping[str, TensorType], lengths: Lengths, sample: Sample
    ) -> None:
        self._segments = segments
        # Without segments nothing runs between two samples, so while one is read the next needs other memory.
        self._inputs = [
            {name: np.empty_like(array) for name, array in sample.items()} for _ in range(1 if segments else 2)
        ]
        passed = _passed_places(segments, types, lengths)
        self._places = [
            _stacked(_known((name for name in segment.shown if name not in passed), types, lengths))
            for segment in segments
        ]
        size = _aligned(max((_end(places) for places in self._places), default=0))
        # In one piece it is large enough for numpy to ask for huge pages, where there are any.
        memory = np.empty(2 * size + _end(passed), np.uint8)
        self._pools = memory[:size], memory[size : 2 * size]
        self._passed = _arrays(passed, memory[2 * size :])
        self._bound: dict[tuple[int, int], BoundSegment] = {}

    def fits(self, sample: Sample) -> bool:
        """Return whether a sample has the shapes that the buffers are for."""
        return all(self._inputs[0][name].shape == array.shape for name, array in sample.items())

    def load(self, sample: Sample) -> dict[str, Array]:
        """Copy a sample into the buffers and return them."""
        self._inputs.reverse()
        for name, array in sample.items():
            self._inputs[0][name][...] = array
        return self._inputs[0]

    def bound(self, number: int, session: "InferenceSession", turn: int) -> "BoundSegment":
        """Return a segment ready to run into its buffers.

        Args:
            number: Which segment.
            session: Its session.
            turn: Which of the two pools to use, 0 or 1.
        """
        key = (number, turn)
        if key not in self._bound:
            passed = {name: self._passed[name] for name in self._segments[number].passed if name in self._passed}
            buffers = passed | _arrays(self._places[number], self._pools[turn])
            self._bound[key] = BoundSegment(session, buffers)
        return self._bound[key]


class InferenceFailed(Exception):  # noqa: N818 - never leaves this room
    """onnxruntime could not run a segment; the cause says why."""


class BoundSegment:
    """A session whose outputs are bound to buffers.

    Args:
        session: The session.
        buffers: Arrays by output name; outputs without one get fresh memory at each run.
    """

    def __init__(self, session: "InferenceSession", buffers: Mapping[str, Array]) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._inputs = [given.name for given in session.get_inputs()]
        self._bind(dict(buffers))

    def run(self, available: Mapping[str, Array], run_options: "RunOptions") -> dict[str, Array]:
        """Return the outputs by name for inputs taken from what is available.

        Raises:
            InferenceFailed: If onnxruntime cannot run the segment on them.
        """
        try:
            return self._run(available, run_options)
        except InferenceFailed:
            # An inferred shape may be wrong, since models can declare anything. Fresh memory fits every shape; if it
            # was not that, the same error comes again.
            if not self._buffers or run_options.terminate:
                raise
            self._bind({})
            return self._run(available, run_options)

    def _bind(self, buffers: dict[str, Array]) -> None:
        self._binding = self._session.io_binding()
        self._buffers = buffers
        self._bound_inputs: dict[str, Array] = {}
        for name, buffer in buffers.items():
            self._binding.bind_output(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)

    def _run(self, available: Mapping[str, Array], run_options: "RunOptions") -> dict[str, Array]:
        for name in self._inputs:
            if self._bound_inputs.get(name) is not available[name]:
                self._binding.bind_cpu_input(name, available[name])
                self._bound_inputs[name] = available[name]
        fresh = [name for name in self._names if name not in self._buffers]
        for name in fresh:
            self._binding.bind_output(name)
        try:
            self._session.run_with_iobinding(self._binding, run_options)
        except Exception as error:
            # onnxruntime's exceptions share no base class below Exception.
            raise InferenceFailed from error
        if not fresh:
            return self._buffers
        # Outputs come in the order in which they were first bound, which is not the session's.
        values = dict(zip([*self._buffers, *fresh], self._binding.get_outputs(), strict=True))
        return self._buffers | {name: values[name].numpy() for name in fresh if values[name].is_tensor()}


@dataclass(frozen=True)
class _Place:
    """Where an array lies in a pool: from byte ``start`` on."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.start + self.nbytes

    @property
    def next_start(self) -> int:
        return _aligned(self.end)

    def moved(self, start: int) -> "_Place":
        return _Place(start, self.shape, self.dtype)


def _known(names: Iterable[str], types: Mapping[str, TensorType], lengths: Lengths) -> dict[str, _Place]:
    """Return the tensors whose shapes and number types are known, all placed at the start."""
    places = {}
    for name in names:
        shape, dtype = types[name].concrete_shape(lengths), types[name].dtype
        if shape is not None and dtype is not None:
            places[name] = _Place(0, shape, dtype)
    return places


def _stacked(places: Mapping[str, _Place]) -> dict[str, _Place]:
    """Return the tensors placed one after the other."""
    stacked: dict[str, _Place] = {}
    start = 0
    for name, place in places.items():
        stacked[name] = place.moved(start)
        start = stacked[name].next_start
    return stacked


def _passed_places(segments: Sequence[Segment], types: Mapping[str, TensorType], lengths: Lengths) -> dict[str, _Place]:
    """Return places for what segments pass on, each below all others that are needed at the same time."""
    last_use = {name: number for number, segment in enumerate(segments) for name in segment.inputs}
    placed: dict[str, _Place] = {}
    needed: dict[str, _Place] = {}
    for number, segment in enumerate(segments):
        needed = {name: place for name, place in needed.items() if last_use[name] >= number}
        for name, place in _known(segment.passed, types, lengths).items():
            needed[name] = placed[name] = place.moved(_first_gap(place.nbytes, needed.values()))
    return placed


def _first_gap(nbytes: int, taken: Iterable[_Place]) -> int:
    """Return the lowest start at which so many bytes fit between the places taken."""
    start = 0
    for place in sorted(taken, key=lambda place: place.start):
        if start + nbytes <= place.start:
            break
        start = max(start, place.next_start)
    return start


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _end(places: Mapping[str, _Place]) -> int:
    return max((place.end for place in places.values()), default=0)


def _arrays(places: Mapping[str, _Place], pool: npt.NDArray[np.uint8]) -> dict[str, Array]:
    return {
        name: pool[place.start : place.end].view(place.dtype).reshape(place.shape) for name, place in places.items()
    }
