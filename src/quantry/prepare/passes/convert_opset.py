"""Raises the standard operator set of a model."""

import onnx
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.prepare.weights import restore_weights, structure_proto

NEWEST_OPSET = 26
"""The newest operator set that onnxruntime runs."""


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at an operator set, with the names of nodes and tensors it had.

    The converter of ONNX sees placeholders for large weights, so the size of the model does not matter.

    Args:
        model: The model; it is left as it was.
        opset: Version of the standard operator set to reach; a model that has it already comes back as a copy.

    Raises:
        ModelError: If the converter cannot convert an operator, or the opset is out of reach.
    """
    current = model.opset_imports[""]
    if opset == current:
        return model.clone()
    if not current < opset <= NEWEST_OPSET:
        raise ModelError(
            f"an opset can be raised to at most {NEWEST_OPSET}, got {current} to {opset}; opset of the model"
        )
    proto, taken = structure_proto(model)
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises RuntimeError and its own ConvertError
        raise ModelError(
            f"the model must convert from opset {current} to {opset}, got: {error}; set another opset"
        ) from error
    result = ir.serde.deserialize_model(converted)
    restore_weights(result, taken)
    result.ir_version = max(model.ir_version, ir_version_for(opset))
    return result


def ir_version_for(opset: int) -> int:
    """Return the lowest IR version that goes with an operator set and that every supported runtime loads."""
    return 10 if opset >= 21 else 8
