"""Feeds samples through the segments of the float model; inference runs beside whatever the caller does."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.data.conform import Sample, Signatures
from quantry.errors import DataError
from quantry.execute.segment_buffers import InferenceFailed, SegmentBuffers
from quantry.graph.segments import Segment, TensorType
from quantry.runtime.sessions import SessionOptions, open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Tensors = dict[str, npt.NDArray[Any]]


def float_pass(
    segments: Sequence[Segment], types: Mapping[str, TensorType], data: CalibrationData, providers: Sequence[str]
) -> Generator[tuple[int, Tensors], None, None]:
    """Yield for each sample its inputs, and then what each segment shows.

    Arrays are valid until the next ones are asked for: two buffers take turns, one written by inference while the
    caller reads the other.

    Args:
        segments: The model, cut.
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
            # Reached early when the caller stops or is interrupted: inference is told to stop too.
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
        # Let go before the next sample is made: the runner has a copy.
        del sample
        yield index, inputs
        try:
            for shown in runner.run(inputs):
                yield index, shown
        except InferenceFailed as failure:
            cause = failure.__cause__
            raise DataError(f"onnxruntime must be able to run the model, got {cause}; sample {index}") from cause


class _Runner:
    """Sessions and buffers of the segments; sessions are opened when they are first needed."""

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
        """Return a copy of a sample, for as long as its segments run."""
        if self._buffers is None or not self._buffers.fits(sample):
            self._buffers = SegmentBuffers(self._segments, self._types, lengths, sample)
        return self._buffers.load(sample)

    def run(self, inputs: Tensors) -> Iterator[Tensors]:
        """Yield what each segment shows for the inputs."""
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
