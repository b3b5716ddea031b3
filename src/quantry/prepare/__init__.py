"""Stage 1: read a float model, check it, and clean its graph up without changing what it computes."""

from quantry.prepare.collection import collection_paused
from quantry.prepare.float_model import FloatModel, InputSignature
from quantry.prepare.model_file import ModelParts, model_parts, serialize, write_model, write_parts
from quantry.prepare.model_source import ModelSource, model_source, read_model
from quantry.prepare.npu import convert
from quantry.prepare.passes import convert_opset
from quantry.prepare.stage import prepare

__all__ = [
    "FloatModel",
    "InputSignature",
    "ModelParts",
    "ModelSource",
    "collection_paused",
    "convert",
    "convert_opset",
    "model_parts",
    "model_source",
    "prepare",
    "read_model",
    "serialize",
    "write_model",
    "write_parts",
]
