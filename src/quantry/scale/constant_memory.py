"""Parameters of constants, found once for each tensor in memory."""

from functools import partial
from weakref import WeakKeyDictionary

import onnx_ir as ir

from quantry.recipe import Method, TensorSpec
from quantry.scale.tensor_params import TensorParams
from quantry.scale.weights import constant_params, measure_constant

_Asked = tuple[TensorSpec, int | None, Method, bool]

# A search tries methods for activations beside each other, and the weights are the same tensors in all those trials.
# The tensors of a stage's model never change, so what was found for one stays true as long as it is there.
_FOUND: WeakKeyDictionary[ir.TensorProtocol, dict[_Asked, TensorParams]] = WeakKeyDictionary()


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
    found = _FOUND.setdefault(tensor, {})
    asked = (spec, axis, method, reduced)
    if asked not in found:
        found[asked] = measure_constant(model, name, find)
    return found[asked]
