"""A module to quantize, and samples for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Sample = dict[str, Any]
"""The keyword arguments of one call, as numpy arrays."""


@dataclass(frozen=True)
class Subject:
    """What an architecture's builder returns.

    Attributes:
        module: The torch module, with the library's initial weights.
        draw: From a random generator to one sample, with a first axis of length 1.
        settings: Further keyword arguments of each call that are not tensors.
        both_exporters: Whether torch's old exporter is tried as well.
    """

    module: Any
    draw: Callable[[np.random.Generator], Sample]
    settings: dict[str, Any] = field(default_factory=dict)
    both_exporters: bool = True


def images(name: str, *shape: int) -> Callable[[np.random.Generator], Sample]:
    """Return how to draw normalized pictures: smooth, with some noise and edges, and values of about -2 to 2.5."""

    def draw(random: np.random.Generator) -> Sample:
        *outer, height, width = shape
        y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
        picture = np.zeros((int(np.prod(outer)), height, width))
        for plane in range(len(picture)):
            for _ in range(4):
                angle, rate, phase = random.uniform(0, np.pi), random.uniform(1, 12), random.uniform(0, 2 * np.pi)
                wave = np.sin(rate * (np.cos(angle) * x + np.sin(angle) * y) + phase)
                picture[plane] += random.normal() * wave
            picture[plane] += np.where(x > random.uniform(0.2, 0.8), random.normal(), 0.0)
        picture += 0.1 * random.normal(size=picture.shape)
        return {name: np.clip(picture, -2.1, 2.6).reshape(1, *shape).astype(np.float32)}

    return draw


def tokens(vocabulary: int, length: int, *names: str) -> Callable[[np.random.Generator], Sample]:
    """Return how to draw sentences: frequent tokens are more likely, as in text."""

    def draw(random: np.random.Generator) -> Sample:
        sample: Sample = {}
        for name in names or ("input_ids",):
            if "mask" in name:
                sample[name] = np.ones((1, length), np.int64)
            else:
                drawn = random.zipf(1.3, size=(1, length))
                sample[name] = np.minimum(drawn, vocabulary - 1).astype(np.int64)
        return sample

    return draw


def sounds(name: str, *shape: int) -> Callable[[np.random.Generator], Sample]:
    """Return how to draw recordings or their spectra: correlated noise whose loudness varies."""

    def draw(random: np.random.Generator) -> Sample:
        noise = random.normal(size=(1, *shape))
        smooth = (noise + np.roll(noise, 1, -1) + np.roll(noise, 2, -1)) / 2
        return {name: (smooth * random.uniform(0.3, 1.5)).astype(np.float32)}

    return draw
