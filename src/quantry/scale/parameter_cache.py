"""Parameters of single tensors, cached as long as the tensor's statistics or values are in memory.

The memo caches whole results of the scale stage. A search varies the methods for activations and for weights
independently, so most tensors of a new result have parameters that an earlier trial found already. On the demo
detector, a search of 16 calibration trials takes 2.5 s of CPU time with this cache and 4.3 s without.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from weakref import WeakKeyDictionary

import onnx_ir as ir

from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import Method, TensorSpec
from quantry.scale.weights import constant_params, measure_constant

# Entries per tensor. A search over percentiles asks for different parameters in every trial and would fill the memory.
_LIMIT = 64

# Statistics and weights never change, so an entry is valid as long as its owner exists.
_CACHED: WeakKeyDictionary[object, dict[Hashable, TensorParams]] = WeakKeyDictionary()
# Several threads may quantize the same model with the same statistics.
_LOCK = threading.Lock()


def cached_params(owner: object, key: Hashable, find: Callable[[], TensorParams]) -> TensorParams:
    """Return the parameters of one tensor, computed unless they are cached.

    Args:
        owner: What they are computed from: the statistics of an activation, or the tensor of a constant.
        key: Everything else that they depend on.
        find: Computes them.
    """
    with _LOCK:
        entries = _CACHED.setdefault(owner, {})
        params = entries.get(key)
    if params is None:
        params = find()
        with _LOCK:
            entries[key] = params
            while len(entries) > _LIMIT:
                del entries[next(iter(entries))]
    return params


def cached_constant_params(
    model: ir.Model, name: str, spec: TensorSpec, axis: int | None, method: Method, *, reduced: bool = False
) -> TensorParams:
    """Return the parameters of an initializer, as `constant_params` computes them.

    Args:
        model: The float model.
        name: Name of the initializer.
        spec: Type, symmetry and kind of scale.
        axis: Channel axis, or the axis of groups; None for one scale.
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
    return cached_params(tensor, (spec, axis, method, reduced), partial(measure_constant, model, name, find))
