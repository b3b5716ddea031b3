"""Protobuf's wire format, as far as ONNX files need it: fields by number, lengths, and where everything lies.

Large models are written and read piece by piece with it: the parser holds everything in memory, and at most 2 GB.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

LENGTH_DELIMITED = 2
"""The kind of fields that hold bytes, strings and messages."""

_VARINT = 0
_FIXED_LENGTHS = {1: 8, 5: 4}
_LONGEST_VARINT = 10
_MORE = 0x80
"""Set in each byte of a number but the last."""

Buffer = bytes | mmap.mmap


class NotProtobuf(Exception):  # noqa: N818 - no error: the parser decides, and has better messages
    """The bytes are not what a writer of ONNX files writes."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        number: Its number in the message.
        kind: How its content is stored.
        start: Where the field begins.
        content: Where its content begins.
        end: Where it ends.
    """

    number: int
    kind: int
    start: int
    content: int
    end: int


def fields(content: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two places.

    Raises:
        NotProtobuf: There is no such message.
    """
    at = start
    while at < end:
        key, value = _number(content, at, end)
        kind = key & 7
        if kind == _VARINT:
            stop = _number(content, value, end)[1]
        elif kind == LENGTH_DELIMITED:
            length, value = _number(content, value, end)
            stop = value + length
        elif kind in _FIXED_LENGTHS:
            stop = value + _FIXED_LENGTHS[kind]
        else:
            raise NotProtobuf
        if stop > end or key >> 3 == 0:
            raise NotProtobuf
        yield Field(key >> 3, kind, at, value, stop)
        at = stop


def _number(content: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    number = 0
    for count in range(min(_LONGEST_VARINT, end - at)):
        byte = content[at + count]
        number |= (byte & ~_MORE) << (7 * count)
        if byte < _MORE:
            return number, at + count + 1
    raise NotProtobuf


def tag(field: int) -> bytes:
    """Return what a field with bytes begins with, before their number."""
    return varint(field << 3 | LENGTH_DELIMITED)


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits in a byte, the lowest first."""
    encoded = bytearray()
    while number >= _MORE:
        encoded.append(number & ~_MORE & 0xFF | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
