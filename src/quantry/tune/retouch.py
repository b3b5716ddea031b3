"""Cheap stages that take a tuning step's result apart: the model to write, and the parameters to write it with."""

import numpy as np

from quantry.errors import InternalError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.weights import tensor_from_array
from quantry.memo import stage
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import NpuLimits
from quantry.scale.npu import refine_for_npu
from quantry.tune.tuned import Tuned


@stage(name="retouch", version=1, stored=False)
def retouch(model: FloatModel, tuned: Tuned) -> FloatModel:
    """Return the model with the tuned weights and biases.

    Args:
        model: The model whose weights were tuned; it is left as it was.
        tuned: What the step returned.
    """
    copy = model.model.clone()
    for name, values in tuned.weights.items():
        value = copy.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise InternalError(f"a tuned weight must be an initializer of the model, got {name!r}; in retouch")
        if tuple(value.const_value.shape.numpy()) != values.shape:
            raise InternalError(
                f"a tuned weight must keep its shape {tuple(value.const_value.shape.numpy())}, got {values.shape}; "
                f"weight {name!r}, in retouch"
            )
        value.const_value = tensor_from_array(np.asarray(values, value.const_value.dtype.numpy()), name)
    return FloatModel(copy)


@stage(name="tuned_params", version=1, stored=False)
def tuned_params(model: FloatModel, plan: QuantPlan, tuned: Tuned, limits: NpuLimits | None) -> QuantParams:
    """Return the parameters that a step left, within an NPU's limits where these are asked for.

    Args:
        model: The float model that was planned.
        plan: Which tensors are quantized.
        tuned: What the step returned.
        limits: Limits on power-of-two positions, or None.
    """
    return tuned.params if limits is None else refine_for_npu(model.model, plan, tuned.params, limits)
