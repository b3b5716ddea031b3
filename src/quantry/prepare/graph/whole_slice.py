"""Telling a slice of everything from a slice of something."""

_TO_THE_END = 10**9  # exporters write this or a larger number; no axis of a network is that long


def is_whole(start: int, end: int, step: int, length: int | None) -> bool:
    """Say whether a slice takes every element of an axis in order.

    Args:
        start: Index of the first element.
        end: Index after the last element.
        step: Distance of elements.
        length: Length of the axis, None where it is not known.
    """
    from_first = start == 0 or (length is not None and start == -length)
    return from_first and step == 1 and end >= (_TO_THE_END if length is None else length)
