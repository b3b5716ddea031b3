"""The eight labelled shapes, each as a signed distance function in its own unit frame.

A shape lies in the disc of radius 1 around the origin. Its distance is negative inside, positive outside, and grows by
about one per unit length near the edge, as soft edges need. Its outline is a set of points whose extreme coordinates,
under any rotation, are those of the shape, which gives boxes with subpixel precision.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float64]

_RING_HOLE = 0.55
_BITE_CENTRE, _BITE_RADIUS = 0.5, 0.85
_CROSS_LENGTH, _CROSS_WIDTH = 0.95, 0.3
_SHAFT_LENGTH, _SHAFT_WIDTH, _HEAD_WIDTH = 0.95, 0.24, 0.75


@dataclass(frozen=True)
class Shape:
    """One class of object.

    Attributes:
        name: Name of the class.
        distance: Maps unit-frame coordinates u and v, any equal shapes, to the signed distance.
        outline: Points [k, 2] whose extremes bound the shape under any rotation.
    """

    name: str
    distance: Callable[[Plane, Plane], Plane]
    outline: Plane


def _half_planes(u: Plane, v: Plane, count: int, inradius: float) -> Plane:
    """Return the distances [count, ...] to the edges of a regular polygon whose first corner is at (1, 0)."""
    angles = [math.pi * (2 * index + 1) / count for index in range(count)]
    return np.stack([u * math.cos(angle) + v * math.sin(angle) - inradius for angle in angles])


def _corners(count: int) -> Plane:
    angles = [2 * math.pi * index / count for index in range(count)]
    return np.array([[math.cos(angle), math.sin(angle)] for angle in angles])


def _circle(u: Plane, v: Plane) -> Plane:
    return np.sqrt(u * u + v * v) - 1.0


def _ring(u: Plane, v: Plane) -> Plane:
    radius = np.sqrt(u * u + v * v)
    return np.maximum(radius - 1.0, _RING_HOLE - radius)


def _square(u: Plane, v: Plane) -> Plane:
    return np.asarray(_half_planes(u, v, 4, math.cos(math.pi / 4)).max(axis=0))


def _triangle(u: Plane, v: Plane) -> Plane:
    return np.asarray(_half_planes(u, v, 3, math.cos(math.pi / 3)).max(axis=0))


def _star(u: Plane, v: Plane) -> Plane:
    # A point is in a pentagram if it is inside at least four of its five lines, so the edge is the second largest.
    return np.asarray(np.sort(_half_planes(u, v, 5, math.cos(2 * math.pi / 5)), axis=0)[-2])


def _bar(u: Plane, v: Plane, half_length: float, half_width: float) -> Plane:
    return np.maximum(np.abs(u) - half_length, np.abs(v) - half_width)


def _cross(u: Plane, v: Plane) -> Plane:
    return np.minimum(_bar(u, v, _CROSS_LENGTH, _CROSS_WIDTH), _bar(v, u, _CROSS_LENGTH, _CROSS_WIDTH))


def _crescent(u: Plane, v: Plane) -> Plane:
    bite = np.sqrt((u - _BITE_CENTRE) ** 2 + v * v)
    return np.maximum(_circle(u, v), _BITE_RADIUS - bite)


def _arrow(u: Plane, v: Plane) -> Plane:
    # The head is the triangle (1, 0), (0, +-_HEAD_WIDTH); the shaft runs from -_SHAFT_LENGTH to the head.
    slope = math.hypot(1.0, _HEAD_WIDTH)
    head = np.maximum((u * _HEAD_WIDTH + np.abs(v) - _HEAD_WIDTH) / slope, -u)
    middle, half = (0.2 - _SHAFT_LENGTH) / 2, (0.2 + _SHAFT_LENGTH) / 2
    return np.minimum(head, _bar(u - middle, v, half, _SHAFT_WIDTH))


def _cross_outline() -> Plane:
    ends = [(a * _CROSS_LENGTH, b * _CROSS_WIDTH) for a in (-1, 1) for b in (-1, 1)]
    return np.array(ends + [(y, x) for x, y in ends])


def _crescent_outline() -> Plane:
    rim = _corners(128)
    # Where the two circles meet: x from |p| = 1 and |p - c| = r.
    x = (1 + _BITE_CENTRE**2 - _BITE_RADIUS**2) / (2 * _BITE_CENTRE)
    y = math.sqrt(1 - x * x)
    return np.concatenate([rim[rim[:, 0] < x], [[x, y], [x, -y]]])


def _arrow_outline() -> Plane:
    tail = [(-_SHAFT_LENGTH, -_SHAFT_WIDTH), (-_SHAFT_LENGTH, _SHAFT_WIDTH)]
    return np.array([(1.0, 0.0), (0.0, -_HEAD_WIDTH), (0.0, _HEAD_WIDTH), *tail])


SHAPES: tuple[Shape, ...] = (
    Shape("circle", _circle, _corners(128)),
    Shape("square", _square, _corners(4)),
    Shape("triangle", _triangle, _corners(3)),
    Shape("star", _star, -_corners(5)),  # the tips lie between the normals of the lines, one of them at (-1, 0)
    Shape("ring", _ring, _corners(128)),
    Shape("cross", _cross, _cross_outline()),
    Shape("crescent", _crescent, _crescent_outline()),
    Shape("arrow", _arrow, _arrow_outline()),
)
