"""Parameters of constants, found once for each tensor in memory."""

from functools import partial

import onnx_ir as ir

from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import Method, TensorSpec
from quantry.scale.parameter_memory import remembered
from quantry.scale.weights import constant_params, measure_constant


def remembered_params(
    model: ir.Model, name: str, spec: TensorSpec, axis: int | None, method: Method, *, reduced: bool = False
) -> TensorParams:
    """Return the parameters of an initializer, as `constant_params` finds them.

    Args:
        model: The float model.
        name: Name of the initializer.
        spec: Type, symmetry and kind of scale.
        axis: Channel axis, or that along which groups lie; None for one scale.
        method: The calibration method.
        reduced: Use one bit less than the type has.

    Raises:
        InternalError: The plan names an initializer that the model does not have.
    """
    value = model.graph.initializers.get(name)
    tensor = None if value is None else value.const_value
    find = partial(constant_params, spec=spec, axis=axis, method=method, reduced=reduced)
    if tensor is None:
        return measure_constant(model, name, find)
    return remembered(tensor, (spec, axis, method, reduced), partial(measure_constant, model, name, find))
