"""Model files of trials: how large they are without the recipe they carry, and the same model with another recipe."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import onnx

from quantry.graph.load import read_model
from quantry.graph.save import write_model

_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_LENGTH_DELIMITED = 2


def model_size(files: Sequence[Path]) -> int:
    """Return the bytes of a model without its metadata: a recipe is longer for one configuration than for another.

    Args:
        files: The model as the emit stage writes it, and the files of its weights if any.
    """
    with files[0].open("rb") as file:
        head = _read_head(file)
    others = onnx.ModelProto()
    others.CopyFrom(head)
    del others.metadata_props[:]
    metadata: int = head.ByteSize() - others.ByteSize()
    return sum(file.stat().st_size for file in files) - metadata


def copy_model(source: Path, target: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Copy a model in one step.

    With metadata of its own the copy is, byte for byte, what the emit stage writes for a recipe that gives the same
    model; nothing but the metadata is touched.

    Args:
        source: The model as the emit stage writes it.
        target: Where the copy goes.
        metadata: What its metadata are to say; None leaves them.
    """
    if len(list(source.parent.glob(f"{source.name}*"))) > 1:
        # The model names the file of its weights, which has another name there.
        model = read_model(source)
        if metadata is not None:
            model.metadata_props.clear()
            model.metadata_props.update(sorted(metadata.items()))
        write_model(model, target)
        return
    written = target.with_name(f".{target.name}.tmp")
    with source.open("rb") as given, written.open("wb") as made:
        if metadata is not None:
            head = _read_head(given)
            onnx.helper.set_model_props(head, dict(sorted(metadata.items())))
            made.write(head.SerializeToString(deterministic=True))
        shutil.copyfileobj(given, made)
    written.replace(target)


def _read_head(file: BinaryIO) -> onnx.ModelProto:
    """Return everything before the graph, which is the last field that the emit stage writes; leave the file there."""
    end = 0
    while (tag := _read_varint(file)) is not None and tag >> 3 != _GRAPH:
        following = _read_varint(file) or 0
        if tag & 7 == _LENGTH_DELIMITED:
            file.seek(following, os.SEEK_CUR)
        end = file.tell()
    file.seek(0)
    return onnx.ModelProto.FromString(file.read(end))


def _read_varint(file: BinaryIO) -> int | None:
    """Return the next number of a protobuf file, seven bits to a byte; None at the end."""
    number, shift = 0, 0
    while byte := file.read(1):
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
        shift += 7
    return None
