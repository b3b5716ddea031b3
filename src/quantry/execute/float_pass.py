"""Feeds samples through the segments of the float model, in parallel with whatever the caller does.

Outputs are written to memory that is allocated once and reused: writing to memory that is already mapped is several
times faster than to fresh memory, whose pages the system clears first.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.data.conform import Sample, Signatures
from quantry.errors import DataError, ModelError
from quantry.graph.segments import Lengths, Segment, TensorType
from quantry.runtime.sessions import SessionOptions, open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

# Bytes; a cache line, and enough for the widest vector instructions.
_ALIGNMENT = 64


def float_pass(
    segments: Sequence[Segment], types: Mapping[str, TensorType], data: CalibrationData, providers: Sequence[str]
) -> Generator[tuple[int, Tensors], None, None]:
    """Yield for each sample its inputs, then the tensors that each segment shows.

    Arrays are valid until the next ones are requested: two buffers take turns, one written by inference while the
    caller reads the other.

    Args:
        segments: The model, cut into segments.
        types: Inferred types of tensors, by name.
        data: Samples to feed.
        providers: Execution providers, first choice first.

    Yields:
        The index of the sample, and tensors by name.

    Raises:
        ModelError: If onnxruntime cannot load a segment.
        DataError: If onnxruntime cannot run it on a sample, or a sample does not fit the model.
    """
    import onnxruntime

    run_options = onnxruntime.RunOptions()
    steps = _steps(_Runner(segments, types, providers, run_options), data)
    with ThreadPoolExecutor(1, thread_name_prefix="quantry-inference") as executor:
        try:
            pending = executor.submit(next, steps, None)
            while (result := pending.result()) is not None:
                pending = executor.submit(next, steps, None)
                yield result
        finally:
            # Reached early if the caller stops or is interrupted; inference must stop too.
            run_options.terminate = True


def lengths_of(sample: Sample, inputs: Signatures) -> dict[str, int]:
    """Return the lengths of the symbolic axes of the inputs."""
    return {
        dim: length
        for signature in inputs
        for dim, length in zip(signature.shape, sample[signature.name].shape, strict=True)
        if isinstance(dim, str)
    }


def _steps(runner: "_Runner", data: CalibrationData) -> Iterator[tuple[int, Tensors]]:
    """Yield the steps of the pass in order, each after running it."""
    samples = iter(data)
    for index in count():
        sample = next(samples, None)
        if sample is None:
            return
        inputs = runner.load(sample, lengths_of(sample, data.inputs))
        # The runner has a copy; free the memory before the next sample is made.
        del sample
        yield index, inputs
        try:
            for shown in runner.run(inputs):
                yield index, shown
        except InferenceFailed as failure:
            cause = failure.__cause__
            raise DataError(f"onnxruntime must be able to run the model, got {cause}; sample {index}") from cause


class _Runner:
    """Sessions and buffers of the segments; sessions are opened on first use."""

    def __init__(
        self,
        segments: Sequence[Segment],
        types: Mapping[str, TensorType],
        providers: Sequence[str],
        run_options: "RunOptions",
    ) -> None:
        self._segments = segments
        self._types = types
        self._providers = providers
        self._run_options = run_options
        self._sessions: list[InferenceSession] = []
        self._buffers: SegmentBuffers | None = None
        self._turn = 0

    def load(self, sample: Sample, lengths: dict[str, int]) -> Tensors:
        """Return a copy of a sample that is valid until the next one is loaded."""
        if self._buffers is None or not self._buffers.fits(sample):
            self._buffers = SegmentBuffers(self._segments, self._types, lengths, sample)
        return self._buffers.load(sample)

    def run(self, inputs: Tensors) -> Iterator[Tensors]:
        """Yield the tensors that each segment shows for the inputs."""
        assert self._buffers is not None
        available = dict(inputs)
        for number, segment in enumerate(self._segments):
            if number == len(self._sessions):
                self._sessions.append(open_session(segment, SessionOptions.float_segment(self._providers)))
            bound = self._buffers.bound(number, self._sessions[number], self._turn)
            outputs = bound.run(available, self._run_options)
            available |= {name: outputs[name] for name in segment.passed}
            self._turn = 1 - self._turn
            yield {name: outputs[name] for name in segment.shown if name in outputs}


class SegmentBuffers:
    """Buffers for all segments, for inputs of given shapes.

    The tensors that a segment shows go to one of two pools in turn: inference writes one while the caller reads the
    other. The tensors that it passes on are in a third pool, where memory is reused after the last segment that reads a
    tensor. Outputs of unknown shape get fresh memory in each run.

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
        # Without segments nothing runs between two samples, so the next one must not overwrite the one being read.
        self._inputs = [
            {name: np.empty_like(array) for name, array in sample.items()} for _ in range(1 if segments else 2)
        ]
        passed = _passed_places(segments, types, lengths)
        self._places = [
            _stacked(_known((name for name in segment.shown if name not in passed), types, lengths))
            for segment in segments
        ]
        size = _aligned(max((_end(places) for places in self._places), default=0))
        # One allocation is large enough for NumPy to request huge pages from the system.
        memory = _allocated(2 * size + _end(passed))
        self._pools = memory[:size], memory[size : 2 * size]
        self._passed = _arrays(passed, memory[2 * size :])
        self._bound: dict[tuple[int, int], BoundSegment] = {}

    def fits(self, sample: Sample) -> bool:
        """Return whether a sample has the shapes that the buffers were made for."""
        return all(self._inputs[0][name].shape == array.shape for name, array in sample.items())

    def load(self, sample: Sample) -> dict[str, Array]:
        """Copy a sample into the buffers and return them."""
        self._inputs.reverse()
        for name, array in sample.items():
            self._inputs[0][name][...] = array
        return self._inputs[0]

    def bound(self, number: int, session: "InferenceSession", turn: int) -> "BoundSegment":
        """Return a segment whose outputs are bound to its buffers.

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


class InferenceFailed(Exception):  # noqa: N818 - never leaves this module
    """onnxruntime could not run a segment; its error is the cause."""


class BoundSegment:
    """A session whose outputs are bound to buffers.

    Args:
        session: The session.
        buffers: Arrays by output name; outputs without one get fresh memory in each run.
    """

    def __init__(self, session: "InferenceSession", buffers: Mapping[str, Array]) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._inputs = [given.name for given in session.get_inputs()]
        self._bind(dict(buffers))

    def run(self, available: Mapping[str, Array], run_options: "RunOptions") -> dict[str, Array]:
        """Return the outputs by name for the available inputs.

        Raises:
            InferenceFailed: If onnxruntime cannot run the segment on them.
        """
        try:
            return self._run(available, run_options)
        except InferenceFailed:
            # An inferred shape may be wrong, since models can declare anything. Fresh memory fits every shape; any
            # other error is raised again.
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
class _Slot:
    """Position of an array in a pool, from byte ``start`` on."""

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

    def moved(self, start: int) -> "_Slot":
        return _Slot(start, self.shape, self.dtype)


def _known(names: Iterable[str], types: Mapping[str, TensorType], lengths: Lengths) -> dict[str, _Slot]:
    """Return the tensors of known shape and type, all at position 0."""
    places = {}
    for name in names:
        shape, dtype = types[name].concrete_shape(lengths), types[name].dtype
        if shape is not None and dtype is not None:
            places[name] = _Slot(0, shape, dtype)
    return places


def _stacked(places: Mapping[str, _Slot]) -> dict[str, _Slot]:
    """Return the tensors one after the other."""
    stacked: dict[str, _Slot] = {}
    start = 0
    for name, place in places.items():
        stacked[name] = place.moved(start)
        start = stacked[name].next_start
    return stacked


def _passed_places(segments: Sequence[Segment], types: Mapping[str, TensorType], lengths: Lengths) -> dict[str, _Slot]:
    """Return positions of the tensors that segments pass on; those needed at the same time do not overlap."""
    last_use = {name: number for number, segment in enumerate(segments) for name in segment.inputs}
    placed: dict[str, _Slot] = {}
    needed: dict[str, _Slot] = {}
    for number, segment in enumerate(segments):
        needed = {name: place for name, place in needed.items() if last_use[name] >= number}
        for name, place in _known(segment.passed, types, lengths).items():
            needed[name] = placed[name] = place.moved(_first_gap(place.nbytes, needed.values()))
    return placed


def _first_gap(nbytes: int, taken: Iterable[_Slot]) -> int:
    """Return the lowest start at which a number of bytes fits between the slots taken."""
    start = 0
    for place in sorted(taken, key=lambda place: place.start):
        if start + nbytes <= place.start:
            break
        start = max(start, place.next_start)
    return start


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _end(places: Mapping[str, _Slot]) -> int:
    return max((place.end for place in places.values()), default=0)


def _arrays(places: Mapping[str, _Slot], pool: npt.NDArray[np.uint8]) -> dict[str, Array]:
    return {
        name: pool[place.start : place.end].view(place.dtype).reshape(place.shape) for name, place in places.items()
    }


def _allocated(size: int) -> npt.NDArray[np.uint8]:
    try:
        return np.empty(size, np.uint8)
    except MemoryError as error:
        raise ModelError(
            f"the tensors between the layers of a model must fit into memory, got {size / 1e9:.3g} GB for one sample; "
            "in the float pass"
        ) from error
