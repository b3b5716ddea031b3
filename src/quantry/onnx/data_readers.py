"""Calibration data readers with the names and the protocol of onnxruntime and AMD Quark."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.open_data import calibration_data
from quantry.data.random_data import RandomData, RandomSource
from quantry.errors import DataError, nearest_spelling
from quantry.graph.float_model import InputSignature, input_signatures
from quantry.graph.load import model_source

Sample = dict[str, NDArray[Any]]

InputShapes = Mapping[str, Iterable[int]] | Iterable[Iterable[int]] | Iterable[int]


class CalibrationDataReader(ABC):
    """Returns one sample at a time; onnxruntime's protocol.

    A reader only needs `get_next`; it does not have to inherit from this class.
    """

    @abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample as input names to arrays, or None at the end."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __next__(self) -> Mapping[str, Any]:
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample


class _ListReader(CalibrationDataReader):
    """A reader over samples in memory that can be rewound."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self._samples = list(samples)
        self._position = 0

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample, or None at the end."""
        if self._position == len(self._samples):
            return None
        self._position += 1
        return self._samples[self._position - 1]

    def reset_iter(self) -> None:
        """Start again at the first sample."""
        self._position = 0

    rewind = reset_iter  # onnxruntime's and AMD's names for the same method.

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._samples[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._samples)


class CachedDataReader(_ListReader):
    """Reads another reader once and keeps its samples in memory.

    Args:
        dr: The reader.
        data_size: Maximum number of samples; None takes all.
        convert_nchw_to_nhwc: Move channels of arrays with four axes to the end.
        quantize_fp16: Store float32 arrays as float16.

    Raises:
        DataError: The reader has no samples.
    """

    def __init__(
        self, dr: Any, data_size: int | None = None, convert_nchw_to_nhwc: bool = False, quantize_fp16: bool = False
    ) -> None:
        samples: list[Mapping[str, Any]] = []
        while data_size is None or len(samples) < data_size:
            sample = dr.get_next()
            if sample is None:
                break
            arrays = {name: _half(array) if quantize_fp16 else array for name, array in sample.items()}
            samples.append(
                {n: np.moveaxis(a, 1, -1) if _is_nchw(a, convert_nchw_to_nhwc) else a for n, a in arrays.items()}
            )
        if not samples:
            raise DataError(f"a data reader must have samples left, got none; {type(dr).__name__}")
        super().__init__(samples)


def _half(array: Any) -> Any:
    return array.astype(np.float16) if array.dtype == np.float32 else array


def _is_nchw(array: Any, channels_first: bool) -> bool:
    return channels_first and np.ndim(array) == 4


class RandomDataReader(_ListReader):
    """One random sample with a fixed seed, to try a model without data.

    Args:
        model_input: The model: a path or an ``onnx.ModelProto``.
        input_shape: Shapes of inputs if they differ from the model's: by name, a list of shapes in the order of the
            inputs, or the shape of the only input. A dynamic batch axis becomes 1; other dynamic axes become
            3 x 32 x 32 for inputs of rank 4, 16 for rank 2 and 32 otherwise.
        input_data_range: Lowest and highest value of inputs by name; [0, 1) by default.

    Raises:
        DataError: A name is not an input of the model, or a range is empty.
    """

    def __init__(
        self,
        model_input: Any,
        input_shape: InputShapes | None = None,
        input_data_range: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        inputs = signatures(model_input)
        shapes = _named_shapes(input_shape, inputs)
        for name in (*shapes, *(input_data_range or {})):
            _check_name(name, inputs, "RandomDataReader")
        sample: dict[str, Any] = {}
        for signature in inputs:
            shape = shapes.get(signature.name, signature.shape)
            low, high = (input_data_range or {}).get(signature.name, (0.0, 1.0))
            source = RandomSource(RandomData(low=low, high=high), (replace(signature, shape=shape),))
            drawn = next(source.read())
            assert isinstance(drawn, Mapping)
            sample |= drawn
        super().__init__([sample])


class PathDataReader(_ListReader):
    """Samples from ``.npy`` files in a directory, or in one subdirectory per input.

    Args:
        model_input: The model: a path or an ``onnx.ModelProto``.
        data_path: The directory.
        input_shape: Shapes that arrays are reshaped to, by input, if they are stored in another shape.

    Raises:
        DataError: There are no files, or they do not fit the model.
    """

    def __init__(
        self,
        model_input: Any,
        data_path: str | os.PathLike[str],
        input_shape: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        inputs = signatures(model_input)
        shapes = {name: tuple(shape) for name, shape in (input_shape or {}).items()}
        for name in shapes:
            _check_name(name, inputs, "PathDataReader")
        # Read the arrays as they are stored, then reshape them.
        open_shapes = tuple(_open(signature) if signature.name in shapes else signature for signature in inputs)
        data = calibration_data(data_path, open_shapes)
        super().__init__({name: _shaped(array, shapes.get(name)) for name, array in sample.items()} for sample in data)


def get_data_reader(
    model_input: Any,
    calibration_data_reader: Any = None,
    calibration_data_path: str | os.PathLike[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the reader that quantization uses.

    Args:
        model_input: The model: a path or an ``onnx.ModelProto``.
        calibration_data_reader: It is returned if it is given.
        calibration_data_path: The directory of a `PathDataReader`.
        extra_options: ``UseRandomData``, ``RandomDataReaderInputShape`` and ``RandomDataReaderInputDataRange``.

    Raises:
        DataError: Nothing of these is given.
    """
    options = extra_options or {}
    if calibration_data_reader is not None:
        return calibration_data_reader
    if calibration_data_path is not None:
        return PathDataReader(model_input, calibration_data_path)
    if not options.get("UseRandomData", False):
        raise DataError("get_data_reader must be given a reader, a path or extra_options['UseRandomData'], got none")
    return RandomDataReader(
        model_input, options.get("RandomDataReaderInputShape"), options.get("RandomDataReaderInputDataRange")
    )


def signatures(model: Any) -> tuple[InputSignature, ...]:
    """Return the inputs of a model given in any form."""
    return input_signatures(model_source(model).load())


def _named_shapes(input_shape: Any, inputs: tuple[InputSignature, ...]) -> dict[str, tuple[Any, ...]]:
    """Return shapes by input for the three forms that AMD's packages accept."""
    if isinstance(input_shape, Mapping):
        return {name: tuple(shape) for name, shape in input_shape.items()}
    shapes = list(input_shape or ())
    if shapes and all(isinstance(length, int) for length in shapes):
        shapes = [shapes]
    if shapes and len(shapes) != len(inputs):
        raise DataError(
            f"RandomDataReader must be given a shape for each of the {len(inputs)} inputs "
            f"({', '.join(signature.name for signature in inputs)}) or a dict of them by name, got {input_shape!r}"
        )
    return {signature.name: tuple(shape) for signature, shape in zip(inputs, shapes, strict=False)}


def _open(signature: InputSignature) -> InputSignature:
    return replace(signature, shape=(None,) * len(signature.shape))


def _shaped(array: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    if shape is None:
        return array
    if array.size != np.prod(shape):
        raise DataError(
            f"arrays must have as many values as input_shape {shape}, got {list(array.shape)}; PathDataReader"
        )
    return array.reshape(shape)


def _check_name(name: str, inputs: tuple[InputSignature, ...], reader: str) -> None:
    names = [signature.name for signature in inputs]
    if name not in names:
        raise DataError(
            f"{reader} must be given names of inputs ({', '.join(names)}), got {name!r}{nearest_spelling(name, names)}"
        )
