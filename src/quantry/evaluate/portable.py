"""Puts a graph in memory into a form that onnxruntime loads."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from quantry.emit import QuantizedModel
from quantry.prepare import serialize, write_model
from quantry.prepare.model_file import weight_bytes

# Bytes are held twice while a session is made from them; a file is mapped.
_INLINE_LIMIT_BYTES = 500_000_000


@dataclass(frozen=True)
class Portable:
    """A model that sessions can be opened from.

    Attributes:
        source: The bytes of the model, or the path of its file.
        size: Bytes of the model with its weights, on disk.
    """

    source: str | bytes
    size: int


@contextmanager
def portable(model: ir.Model, inline_limit: int = _INLINE_LIMIT_BYTES) -> Iterator[Portable]:
    """Give the bytes of a model, or the path of a temporary file where it is too large for that.

    Sessions outlive the file: onnxruntime has read or mapped the weights when the session exists.

    Args:
        model: The graph; it is left as it was.
        inline_limit: Weights of more bytes than this in total go to a file.
    """
    if weight_bytes(model) <= inline_limit:
        content = serialize(model)
        yield Portable(content, len(content))
        return
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        files = write_model(model, Path(folder) / "model.onnx", external_data_threshold=inline_limit)
        yield Portable(str(files[0]), sum(file.stat().st_size for file in files))


def portable_result(quantized: QuantizedModel) -> AbstractContextManager[Portable]:
    """Give a quantized model as `portable` gives a graph, from the bytes of its file where these are known."""
    if quantized.parts is None or quantized.parts.weight_bytes > _INLINE_LIMIT_BYTES:
        return portable(quantized.model)
    content = quantized.to_bytes()
    return nullcontext(Portable(content, len(content)))
