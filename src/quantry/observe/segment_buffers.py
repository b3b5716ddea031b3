"""Where the outputs of segments go: memory that is allocated once and written again and again.

Writing to memory that is already mapped is several times faster than to fresh memory, whose pages the system clears
first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantry.observe.segments import Lengths, Segment, TensorType

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Array = npt.NDArray[Any]
_ALIGNMENT = 64


class SegmentBuffers:
    """Buffers for all segments, for inputs of given shapes.

    What segments show goes to one of two pools that take turns. What they pass on has memory of its own, because it
    must outlive the pools' turns. Outputs whose shapes are not known beforehand get fresh memory at each run.

    Args:
        segments: The segments.
        types: Inferred types of tensors, by name.
        lengths: Lengths of the symbolic axes.
    """

    def __init__(self, segments: Sequence[Segment], types: Mapping[str, TensorType], lengths: Lengths) -> None:
        self.lengths = lengths
        self._segments = segments
        self._passed = {
            name: np.empty(shape, dtype)
            for segment in segments
            for name, shape, dtype in _known(segment.passed, types, lengths)
        }
        self._layouts = [
            _Layout(_known((n for n in segment.shown if n not in self._passed), types, lengths)) for segment in segments
        ]
        size = max(layout.nbytes for layout in self._layouts)
        self._pools = [np.empty(size, np.uint8) for _ in range(2)]
        self._bound: dict[tuple[int, int], BoundSegment] = {}

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
            buffers = passed | self._layouts[number].arrays(self._pools[turn])
            self._bound[key] = BoundSegment(session, buffers)
        return self._bound[key]


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
        """Return the outputs by name for inputs taken from what is available."""
        try:
            return self._run(available, run_options)
        except Exception:
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
        self._session.run_with_iobinding(self._binding, run_options)
        if not fresh:
            return self._buffers
        values = dict(zip(self._names, self._binding.get_outputs(), strict=True))
        return self._buffers | {name: values[name].numpy() for name in fresh if values[name].is_tensor()}


class _Layout:
    """Places of arrays in a pool."""

    def __init__(self, known: Sequence[tuple[str, tuple[int, ...], "np.dtype[Any]"]]) -> None:
        self._places: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}
        self.nbytes = 0
        for name, shape, dtype in known:
            self._places[name] = (self.nbytes, shape, dtype)
            self.nbytes += -(-int(np.prod(shape)) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def arrays(self, pool: npt.NDArray[np.uint8]) -> dict[str, Array]:
        return {
            name: pool[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
            for name, (start, shape, dtype) in self._places.items()
        }


def _known(
    names: Iterable[str], types: Mapping[str, TensorType], lengths: Lengths
) -> list[tuple[str, tuple[int, ...], "np.dtype[Any]"]]:
    """Return the tensors whose shapes and number types are known, with both."""
    found = []
    for name in names:
        dtype, shape = types[name].dtype, types[name].concrete_shape(lengths)
        if dtype is not None and shape is not None:
            found.append((name, shape, dtype))
    return found
