"""Rotations that spread every channel evenly over all channels and keep the vector of ones.

The rows of an orthonormal matrix ``B`` with entries of equal magnitude, a Hadamard matrix, are flat: ``B.T @ e`` has
the entries ``+-1 / sqrt(d)`` for every unit vector ``e``, so an outlier of size ``a`` in one channel becomes
``a / sqrt(d)`` in all of them. A random rotation leaves peaks of three to four times that.
"""

import numpy as np


def rotation(size: int, seed: int) -> np.ndarray:
    """Return an orthogonal matrix ``Q`` with ``Q @ ones = ones``, (size, size) float64; different for each seed.

    ``Q = B.T @ H``: the reflection ``H`` moves the normalized vector of ones to the first axis and nearly keeps the
    other axes, and the first row of ``B`` is that vector. Order and signs of the other rows are random: rotations of
    different seeds are unrelated, and the first axis, which ``H`` does not keep, is spread too.

    Args:
        size: Number of channels.
        seed: Which one.
    """
    random = np.random.default_rng(seed)
    rows = _hadamard(size)
    basis = _cosines(size) if rows is None else rows / np.sqrt(size)
    rows_after_first = basis[1:][random.permutation(size - 1)] * random.choice((-1.0, 1.0), size=(size - 1, 1))
    mixed = np.concatenate([basis[:1], rows_after_first])
    normal = np.full(size, size**-0.5)
    normal[0] -= 1.0
    length = float(normal @ normal)
    if length == 0.0:  # a single channel
        return np.ones((1, 1))
    # B.T @ (I - 2 v v.T / |v|^2), without forming H.
    rotated: np.ndarray = mixed.T - np.outer(mixed.T @ normal, normal) * (2.0 / length)
    return rotated


def _cosines(size: int) -> np.ndarray:
    """Return the basis of the discrete cosine transform, whose entries are at most ``sqrt(2 / size)``."""
    indices = np.arange(size)
    basis: np.ndarray = np.sqrt(2.0 / size) * np.cos(np.pi * np.outer(indices, 2 * indices + 1) / (2 * size))
    basis[0] = size**-0.5
    return basis


def _hadamard(size: int) -> np.ndarray | None:
    """Return a Hadamard matrix whose first row and column are ones, or None if no construction is known here.

    Paley's matrices of order ``q + 1``, for primes ``q = 3 modulo 4``, doubled as often as needed (Sylvester). They
    cover the usual widths of transformers: 192, 312, 384, 576, 768, 1024, ...
    """
    base, doublings = size, 0
    while not _is_paley(base):
        if base % 2 or base == 0:
            return None
        base, doublings = base // 2, doublings + 1
    matrix = np.ones((1, 1)) if base == 1 else _paley(base - 1)
    for _ in range(doublings):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signed = matrix * matrix[:1]
    return signed * signed[:, :1]


def _is_paley(order: int) -> bool:
    prime = order - 1
    is_prime = prime > 2 and all(prime % divisor for divisor in range(2, int(prime**0.5) + 1))
    return order == 1 or (is_prime and prime % 4 == 3)


def _paley(prime: int) -> np.ndarray:
    """Return ``I + S``, where ``S`` is skew and has the quadratic characters of differences modulo the prime."""
    squares = {value * value % prime for value in range(1, prime)}
    character = np.array([0.0, *(1.0 if value in squares else -1.0 for value in range(1, prime))])
    indices = np.arange(prime)
    matrix = np.ones((prime + 1, prime + 1))
    matrix[1:, 0] = -1.0
    matrix[1:, 1:] = character[(indices[:, None] - indices[None]) % prime] + np.eye(prime)
    return matrix
