"""From a file or bytes to a proto, with every way this can fail translated."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from quantry.errors import ModelError, ModelNotFoundError


def read_model_file(path: Path) -> onnx.ModelProto:
    """Return the proto in a file, without its external data.

    Raises:
        ModelNotFoundError: If there is no such file.
        ModelError: If the file is no readable ONNX model.
    """
    if path.is_dir():
        raise ModelError(f"the model must be an ONNX file, got a folder; at {path}")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"the model file must exist, found nothing; at {path}") from error
    except OSError as error:
        raise ModelError(f"the model file must be readable, got {error.strerror}; at {path}") from error
    return parse_model(content, str(path))


def parse_model(content: bytes, label: str) -> onnx.ModelProto:
    """Return the proto that bytes encode.

    Args:
        content: Bytes of an ONNX file.
        label: What messages call the model.

    Raises:
        ModelError: If the bytes are empty, truncated, no ONNX model, or a model without nodes.
    """
    if not content:
        raise ModelError(f"the model must not be empty, got 0 bytes; in {label}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(
            f"the model must be a complete ONNX protobuf, got {len(content)} bytes that do not decode "
            f"(truncated, or another format); in {label}"
        ) from error
    if not proto.HasField("graph"):
        raise ModelError(f"the model must contain a graph, got {len(content)} bytes without one; in {label}")
    return proto
