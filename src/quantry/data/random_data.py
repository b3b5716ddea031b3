"""Random samples, to try out a model without data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantry.data.calibration_data import SampleSource
from quantry.data.conform import Array, Sample, Signatures, conform, describe
from quantry.errors import DataError, ModelError
from quantry.graph.float_model import InputSignature


@dataclass(frozen=True)
class RandomData:
    """Random samples, uniform in ``[low, high)``; integer inputs are uniform in ``low..high``, both included.

    Equal ends give constant samples, such as a mask of ones. A dynamic leading axis becomes 1. Other dynamic axes
    become 3 channels of 32 x 32 for inputs of rank 4, 16 for rank 2, and 32 otherwise.

    Attributes:
        samples: Number of samples.
        low: Smallest value.
        high: End of the range.
        seed: Seed of the generator; equal seeds give equal samples.
    """

    samples: int = 1
    low: float = 0.0
    high: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise DataError(f"RandomData.samples must be at least 1, got {self.samples!r}")
        if not self.low <= self.high:
            raise DataError(f"RandomData.low must not be above high, got {self.low!r} and {self.high!r}")


LARGEST_SAMPLE = 1 << 28
"""Most elements of a random array; a shape that claims more is damaged, or needs data of its own."""


class RandomSource(SampleSource):
    """The samples of a `RandomData`."""

    def __init__(self, request: RandomData, inputs: Signatures) -> None:
        self._request = request
        self._inputs = inputs

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._request.samples

    def read(self) -> Iterator[object]:
        """Yield samples, each drawn with its own seed."""
        for index in range(self._request.samples):
            generator = np.random.default_rng((self._request.seed, index))
            sample: Sample = {signature.name: self._draw(signature, generator) for signature in self._inputs}
            yield sample

    def _draw(self, signature: InputSignature, generator: np.random.Generator) -> Array:
        shape, low, high = concrete_shape(signature.shape), self._request.low, self._request.high
        if math.prod(shape) > LARGEST_SAMPLE:
            raise ModelError(
                f"an input must have at most {LARGEST_SAMPLE} elements for random data, got the shape {list(shape)}; "
                f"pass data; input {signature.name!r}"
            )
        if signature.dtype.kind == "b":
            return generator.integers(0, 2, shape).astype(bool)
        if signature.dtype.kind in "iu":
            return generator.integers(int(low), int(high), shape, endpoint=True).astype(signature.dtype)
        if signature.dtype.kind == "f":
            return (low + (high - low) * generator.random(shape)).astype(signature.dtype)
        raise DataError(f"random data needs numeric inputs, got {describe(signature)}; input {signature.name!r}")


def random_sample(inputs: Signatures) -> Sample:
    """Return one random sample for inputs."""
    return conform(next(RandomSource(RandomData(), inputs).read()), inputs, 0)


def concrete_shape(shape: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """Return a shape without dynamic axes.

    Example:
        >>> concrete_shape(("batch", None, "height", 64))
        (1, 3, 32, 64)
    """
    stand_ins = {2: (1, 16), 4: (1, 3, 32, 32)}.get(len(shape), (1, *[32] * len(shape)))
    return tuple(dim if isinstance(dim, int) else stand_in for dim, stand_in in zip(shape, stand_ins, strict=False))
