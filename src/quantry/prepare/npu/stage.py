"""The conversions as a stage of their own.

A quantized model is compared with the float model as it was given, not with the converted one. Kept apart, the
conversions start from the same prepared model that serves as the reference.
"""

from quantry.memo import stage
from quantry.prepare.float_model import FloatModel
from quantry.prepare.npu.convert import convert_for_npu
from quantry.prepare.passes import infer_shapes, remove_unused
from quantry.prepare.weights import rebuilt
from quantry.recipe import NpuConversions


@stage(name="convert", version=1)
def convert(model: FloatModel, options: NpuConversions, untouched: tuple[str, ...] = ()) -> FloatModel:
    """Return the model with operators replaced by what the NPU computes in their place.

    Args:
        model: A prepared model.
        options: Which conversions to make.
        untouched: Names of nodes to leave as they are: what stays float does not run on the NPU.

    Returns:
        A new model, with notes on what each conversion changed.
    """
    copy = model.model.clone()
    notes = convert_for_npu(copy, options, untouched)
    remove_unused(copy)
    infer_shapes(copy)
    return FloatModel(rebuilt(copy), (*model.notes, *notes))
