"""Parameters of activations, found once for the statistics of each tensor in memory."""

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from quantry.observe import TensorStats
from quantry.observe.scalar_function import ScalarFunction
from quantry.recipe import Method, TensorSpec
from quantry.scale.tensor_params import TensorParams

_Asked = tuple[Method, TensorSpec, tuple[ScalarFunction, ...]]

_KEPT = 64
"""So many answers are kept for one tensor: a search over percentiles asks for another in each trial."""

# A search tries methods for weights beside each other, and the statistics are the same objects in all those trials.
# They never change, so what was found stays true as long as they are there.
_FOUND: WeakKeyDictionary[TensorStats, dict[_Asked, TensorParams]] = WeakKeyDictionary()
_TURN = threading.Lock()
"""For whoever changes what is kept: several threads may quantize with the same statistics."""


def remembered(stats: TensorStats, asked: _Asked, find: Callable[[], TensorParams]) -> TensorParams:
    """Return the parameters of an activation, as they were found before or as they are found now.

    Args:
        stats: What was observed of it.
        asked: The calibration method, the specification, and the functions behind which errors are judged: all that the
            parameters follow from besides.
        find: Finds them.
    """
    with _TURN:
        found = _FOUND.setdefault(stats, {})
        known = found.get(asked)
    if known is None:
        known = find()
        with _TURN:
            found[asked] = known
            while len(found) > _KEPT:
                del found[next(iter(found))]
    return known
