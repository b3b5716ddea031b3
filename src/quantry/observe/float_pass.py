"""Feeds samples to the float model; inference of the next sample runs while the caller looks at the last one."""

from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantry.errors import DataError
from quantry.observe.calibration_data import CalibrationData
from quantry.observe.conform import Sample, Signatures

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Shape = tuple[int | str | None, ...]
Tensors = dict[str, npt.NDArray[Any]]


def float_pass(
    session: "InferenceSession", shapes: Mapping[str, Shape], data: CalibrationData
) -> Generator[tuple[Sample, Tensors], None, None]:
    """Yield each sample with the session's outputs for it.

    Arrays are valid until the next one is asked for: two sets of buffers take turns, because writing to memory that is
    already mapped is several times faster than to fresh memory.

    Args:
        session: The session.
        shapes: Inferred shapes of outputs, by name.
        data: Samples to feed.

    Raises:
        DataError: If onnxruntime cannot run the model on a sample, or a sample does not fit the model.
    """
    import onnxruntime

    run_options = onnxruntime.RunOptions()
    slots = [_Slot(session, shapes, data.inputs, run_options) for _ in range(2)]
    samples = enumerate(iter(data))

    def advance(slot: "_Slot") -> tuple[Sample, Tensors] | None:
        index, sample = next(samples, (0, None))
        return None if sample is None else (sample, slot.run(sample, index))

    with ThreadPoolExecutor(1, thread_name_prefix="quantry-inference") as executor:
        try:
            pending = executor.submit(advance, slots[0])
            while (result := pending.result()) is not None:
                slots.reverse()
                pending = executor.submit(advance, slots[0])
                yield result
        finally:
            # Reached early when the caller stops or is interrupted: inference is told to stop too.
            run_options.terminate = True


class _Slot:
    """Buffers for the outputs of one run, used again as long as the inputs keep their shapes."""

    def __init__(
        self,
        session: "InferenceSession",
        shapes: Mapping[str, Shape],
        inputs: Signatures,
        run_options: Any,
    ) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._shapes = shapes
        self._inputs = inputs
        self._run_options = run_options
        self._binding = session.io_binding()
        self._bound_for: dict[str, tuple[int, ...]] | None = None
        self._buffers: Tensors = {}

    def run(self, sample: Sample, index: int) -> Tensors:
        """Return the outputs for one sample."""
        try:
            return self._run_bound(sample)
        except Exception as error:
            # onnxruntime's exceptions share no base class below Exception.
            raise DataError(f"onnxruntime must be able to run the model, got {error}; sample {index}") from error

    def _run_bound(self, sample: Sample) -> Tensors:
        input_shapes = {name: array.shape for name, array in sample.items()}
        if input_shapes != self._bound_for:
            self._allocate(input_shapes)
        for name, array in sample.items():
            self._binding.bind_cpu_input(name, array)
        unbound = [name for name in self._names if name not in self._buffers]
        for name in unbound:
            self._binding.bind_output(name)
        self._session.run_with_iobinding(self._binding, self._run_options)
        if not unbound:
            return self._buffers
        fresh = dict(zip(self._names, self._binding.get_outputs(), strict=True))
        return self._buffers | {name: fresh[name].numpy() for name in unbound}

    def _allocate(self, input_shapes: dict[str, tuple[int, ...]]) -> None:
        """Bind buffers for the outputs whose shapes follow from those of the inputs."""
        lengths = {
            dim: length
            for signature in self._inputs
            for dim, length in zip(signature.shape, input_shapes[signature.name], strict=True)
            if isinstance(dim, str)
        }
        self._binding.clear_binding_outputs()
        self._buffers = {}
        self._bound_for = input_shapes
        for name in self._names:
            shape = [lengths.get(dim) if isinstance(dim, str) else dim for dim in self._shapes.get(name, (None,))]
            if any(length is None for length in shape):
                continue
            buffer = np.empty([length for length in shape if length is not None], np.float32)
            self._buffers[name] = buffer
            self._binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
