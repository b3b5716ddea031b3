"""Scales chosen by what their errors do to the results.

Rounding a tensor x with the scale s leaves an error e(s) = Q(x, s) - x, and `error_prices` says what that costs. A
range that suits the values a tensor usually has need not suit those that matter: in a detector few cells see an object,
and the least squared error is the background's.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.numerics.power_of_two import nearest_exponent
from quantry.recipe import PowerOfTwoScale
from quantry.scale.npu import LIMITS, refine_for_npu
from quantry.torchfront.error_costs import (
    Candidates,
    Importance,
    candidate_errors,
    check_scales_are_free,
    fake_quantizers,
    price_errors,
)
from quantry.torchfront.fake_quantizer import FakeQuantizer
from quantry.torchfront.freezing import current_params
from quantry.torchfront.quantized_module import QuantizedModule

_OCTAVES = 3
_FINER = 4


def choose_scales(
    module: QuantizedModule, batches: Iterable[Any], importance: Importance | None = None, *, seed: int = 0
) -> int:
    """Give every quantizer the scale whose error costs the results least; needs no labels.

    Power-of-two scales move by whole powers of two, others by quarters of them, up to three powers each way. Tensors
    that an NPU's limits tie to one position are priced together, and its other limits hold afterwards.

    Args:
        module: What quantization after training returned, with scales that are not learned; it is changed in place.
        batches: Some batches of calibration data: tensors, or tuples whose first item is one. A few dozen pictures do.
        importance: What errors of the results cost; None takes the squared error of each result, relative to its size.
        seed: Of the random directions.

    Returns:
        How many scales moved.

    Raises:
        DataError: There are no batches.
        ModelError: The module is no quantized one, or is frozen.
        RecipeError: Scales are learned, and so are no longer to be chosen.

    Example:
        >>> quantized = quantizer.quantize_model(graph, pictures)  # doctest: +SKIP
        >>> choose_scales(quantized, pictures, lambda rows: rows[..., 4:5].detach().expand_as(rows))  # doctest: +SKIP
    """
    check_scales_are_free(module, "choose_scales")
    prices = {
        name: _Price(part, 2.0 ** np.arange(-_OCTAVES, _OCTAVES + _step(part) / 2, _step(part)))
        for name, part in fake_quantizers(module).items()
    }
    price_errors(module, prices, batches, importance, seed)
    moved = 0
    for names in tied_scales(module):
        known = [prices[name] for name in names if name in prices and prices[name].seen]
        if len(known) == len(names):
            moved += _moved(known)
    _keep_limits(module)
    return moved


@dataclass(eq=False)
class _Price:
    """What each candidate for the scale of one quantizer costs.

    Attributes:
        quantizer: The quantizer.
        factors: Candidates as factors of the scale it has, [candidates].
        costs: [candidates, scales].
    """

    quantizer: FakeQuantizer
    factors: npt.NDArray[np.float64]
    costs: Tensor = field(init=False)
    seen: bool = False

    def __post_init__(self) -> None:
        self.costs = torch.zeros(len(self.factors), self.quantizer.scale.numel(), dtype=torch.float64)

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add what errors of some values cost."""
        self.seen = True
        part = self.quantizer
        self.costs += candidate_errors(values, gradient, Candidates.of(part, self.factors), part.axis)


def _step(part: FakeQuantizer) -> float:
    return 1.0 if isinstance(part.spec.scale, PowerOfTwoScale) else 1.0 / _FINER


def _moved(known: list[_Price]) -> int:
    """Give quantizers that go together the cheapest scale; return how many changed."""
    best = [known[0].factors[known[0].costs.argmin(0).numpy()]] if len(known) == 1 else _joint(known)
    count = 0
    for price, factor in zip(known, best, strict=True):
        scale = price.quantizer.scale
        count += int(np.any(factor != 1.0))
        scale.mul_(torch.as_tensor(factor, dtype=scale.dtype, device=scale.device).reshape(scale.shape))
    return count


def _joint(known: list[_Price]) -> list[npt.NDArray[np.float64]]:
    """Return the factors that bring all quantizers to the one scale that costs least in all."""
    scales = np.array([float(price.quantizer.scale) for price in known])
    exponents = nearest_exponent(scales / scales[0]).astype(int)
    middle = len(known[0].factors) // 2
    best, cheapest = 0, np.inf
    for exponent in range(int(exponents.max()) - middle, int(exponents.min()) + middle + 1):
        cost = sum(float(price.costs[exponent - own + middle]) for price, own in zip(known, exponents, strict=True))
        if cost < cheapest:
            best, cheapest = exponent, cost
    return [np.array([2.0 ** (best - own)]) for own in exponents]


def tied_scales(module: QuantizedModule) -> list[list[str]]:
    """Return the names of quantizers in groups that must have one position."""
    plan, limits = module.definition.plan, module.definition.recipe.scale.npu
    leader = {name: name for name in module.layout.quantizers}

    def led(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    aligned = [limit for limit in LIMITS if hasattr(limit, "operators") and getattr(limits, limit.name, False)]
    operators = {operator for limit in aligned for operator in limit.operators}
    for node in module.definition.model.model.graph:
        if node.op_type in operators and node.name in plan.quantized_nodes:
            values = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
            roots = [plan.root(name) for name in values if name in plan.activations]
            for one, other in itertools.pairwise(roots):
                leader[led(one)] = led(other)
    groups: dict[str, list[str]] = {}
    for name in leader:
        groups.setdefault(led(name), []).append(name)
    return list(groups.values())


def _keep_limits(module: QuantizedModule) -> None:
    definition = module.definition
    if definition.recipe.scale.npu is None:
        return
    model, params = definition.model.model, current_params(module)
    refined = refine_for_npu(model, definition.plan, params, definition.recipe.scale.npu)
    for name, part in fake_quantizers(module).items():
        part.scale.copy_(torch.tensor(refined.tensors[name].scale))
