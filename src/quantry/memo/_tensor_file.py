"""The safetensors format, without a copy.

The layout is an 8-byte little-endian length, a JSON header, and the elements of all arrays
(https://huggingface.co/docs/safetensors). The package of that name copies every array twice to write it and once to
read it, and writes arrays that are not contiguous wrongly; tests/memo compares the two in both directions.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.memo._blob import STORED_DTYPES

_DTYPES = {tag: np.dtype(name).newbyteorder("<") for name, tag in STORED_DTYPES.items()}


def tensor_chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, piece by piece.

    Args:
        arrays: Names to C-contiguous arrays of any shape, as in `Blob.arrays`.
    """
    # Wide elements first keeps every array aligned; the header keeps the order of names.
    laid_out = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    starts: dict[str, int] = {}
    end = 0
    for name in laid_out:
        starts[name], end = end, end + arrays[name].nbytes
    header = {
        name: {
            "dtype": STORED_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [starts[name], starts[name] + array.nbytes],
        }
        for name, array in arrays.items()
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    padded = text + b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(padded)) + padded
    for name in laid_out:
        array = arrays[name]
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in the bytes of a safetensors file, as read-only views of those bytes.

    Raises:
        ValueError, KeyError, TypeError, struct.error: The bytes are not such a file.
    """
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            data,
            dtype=_DTYPES[entry["dtype"]],
            count=math.prod(entry["shape"]),
            # An empty array may lie at the very end, where frombuffer accepts no offset.
            offset=8 + length + entry["data_offsets"][0] if math.prod(entry["shape"]) else 0,
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }
