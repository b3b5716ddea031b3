"""What a model file amounts to, whatever recipe it carries in its metadata."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx


@dataclass(frozen=True)
class WrittenModel:
    """A model on disk.

    Attributes:
        digest: Digest of everything but the metadata: two with the same compute the same. None for a model with weights
            in a second file.
        size: Bytes of everything but the metadata.
    """

    digest: str | None
    size: int


def written_model(files: Sequence[Path]) -> WrittenModel:
    """Read what was written.

    Args:
        files: The model, and the files of its weights if any.
    """
    if len(files) > 1:
        return WrittenModel(None, sum(file.stat().st_size for file in files))
    proto = onnx.load(str(files[0]), load_external_data=False)
    # The recipe is in the metadata; it is longer for one configuration than for another.
    del proto.metadata_props[:]
    content = proto.SerializeToString(deterministic=True)
    return WrittenModel(hashlib.blake2b(content, digest_size=16).hexdigest(), len(content))
