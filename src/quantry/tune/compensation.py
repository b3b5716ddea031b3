"""How far the constants of a layer should make up for errors of its inputs.

A layer is fed what quantized layers give, ``x``, and should give what it gives in the float model, ``y``. What lies
between, ``y - W x - b`` with its float constants, is the error that its inputs bring along. Other constants make up for
a part of it; but with few samples, most of what they seem to make up for is chance, and is worse than nothing on the
next samples. So the samples are cut in two: constants that are the best for one half are tried on the other one, and
the target is moved from ``W x + b`` towards ``y`` only as far as that pays there.

Functions here take arrays as well as tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from quantry.tune.column_rounding import damped
from quantry.tune.quadratic import Quadratic

if TYPE_CHECKING:
    from quantry.tune.tensor_quadratic import TensorQuadratic

DAMPING = 0.1
"""Of the constants that are tried, as a part of the mean of the Gram matrix's diagonal."""


AnyForm = TypeVar("AnyForm", Quadratic, "TensorQuadratic")
Solve = Callable[[Any, Any], Any]


def part_that_holds(halves: Sequence[AnyForm], weight: Any, solve: Solve = np.linalg.solve) -> float:
    """Return which part of what weights make up for in one half of the samples they make up for in the other half.

    With the best change ``d`` of the weights for one half and the error ``e`` of the other one, this is the factor
    ``a`` for which ``|a d x - e|^2`` is the smallest, for both ways round at once.

    Args:
        halves: The moments of each half of the samples; one alone tells nothing.
        weight: The float weights, ``[groups, rows, width]``, in double precision.
        solve: From matrices and right-hand sides to solutions.

    Returns:
        From 0 to 1.
    """
    if len(halves) < 2:
        return 0.0
    gaps = [half.cross - half.gram @ weight.swapaxes(1, 2) for half in halves]
    shared = total = 0.0
    for learned, tried in ((0, 1), (1, 0)):
        change = solve(damped(halves[learned].gram, DAMPING), gaps[learned])
        shared += float((change * gaps[tried]).sum())
        total += float((change * (halves[tried].gram @ change)).sum())
    return min(1.0, max(0.0, shared / total)) if total > 0.0 else 0.0


def aimed(form: AnyForm, weight: Any, bias: Any, part: float) -> AnyForm:
    """Return a form whose targets lie between what a layer gives on its inputs and the targets of a given form.

    Args:
        form: Moments of columns and targets.
        weight: Of the layer, ``[groups, rows, width]``, in double precision.
        bias: Of the layer, ``[groups, rows]``, likewise.
        part: 0 aims at what the layer gives, 1 at the targets of the form.
    """
    turned = weight.swapaxes(1, 2)
    # What the layer gives itself; the arrays may be large, so few of them are made.
    cross = form.gram @ turned
    own = 1.0 - part
    power = part**2 * form.power + 2.0 * part * own * (turned * form.cross).sum(1) + own**2 * (turned * cross).sum(1)
    cross *= own
    cross += part * form.cross
    mean = (weight * form.column_mean[:, None, :]).sum(2) + bias
    return replace(form, cross=cross, power=power, target_mean=part * form.target_mean + own * mean, part=part)


def joined(halves: Sequence[AnyForm]) -> AnyForm:
    """Return the moments of all samples from those of each half, or of the only one."""
    if len(halves) == 1:
        return halves[0]
    one, two = halves
    count = one.count + two.count
    part, rest = one.count / count, two.count / count
    columns, targets = one.column_mean - two.column_mean, one.target_mean - two.target_mean
    # Moments about one mean differ from those about two by what the means are apart.
    apart = part * rest

    def mean(of_one: Any, of_two: Any) -> Any:
        return part * of_one + rest * of_two

    return replace(
        one,
        gram=mean(one.gram, two.gram) + apart * (columns[:, :, None] * columns[:, None, :]),
        cross=mean(one.cross, two.cross) + apart * (columns[:, :, None] * targets[:, None, :]),
        power=mean(one.power, two.power) + apart * targets**2,
        column_mean=mean(one.column_mean, two.column_mean),
        target_mean=mean(one.target_mean, two.target_mean),
        count=count,
    )
