"""Parameters that were found once for what is in memory: the statistics of an activation, or a constant."""

import threading
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from quantry.numerics.tensor_params import TensorParams

_KEPT = 64
"""So many answers are kept for one tensor: a search over percentiles asks for another in each trial."""

# A search tries methods for weights and for activations beside each other, and asks the same objects in all its
# trials. They never change, so what was found stays true as long as they are there.
_FOUND: WeakKeyDictionary[object, dict[Hashable, TensorParams]] = WeakKeyDictionary()
_TURN = threading.Lock()
"""For whoever changes what is kept: several threads may quantize the same model with the same statistics."""


def remembered(owner: object, asked: Hashable, find: Callable[[], TensorParams]) -> TensorParams:
    """Return parameters as they were found before or as they are found now.

    Args:
        owner: What they are found from: the statistics of an activation, or the tensor of a constant.
        asked: All that the parameters follow from besides.
        find: Finds them.
    """
    with _TURN:
        found = _FOUND.setdefault(owner, {})
        known = found.get(asked)
    if known is None:
        known = find()
        with _TURN:
            found[asked] = known
            while len(found) > _KEPT:
                del found[next(iter(found))]
    return known
