"""Chooses scales by what their rounding errors cost the results.

Rounding a tensor x with scale s causes an error e(s) = Q(x, s) - x; `error_costs` estimates what it costs. The scale
with the least squared error is not always the best one: in a detector few cells see an object, so the least squared
error is mostly that of the background.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.numerics.power_of_two import nearest_exponent
from quantry.scale.npu import LIMITS, refine_for_npu
from quantry.torchfront.error_costs import (
    Candidates,
    Importance,
    candidate_errors,
    check_scales_are_fixed,
    collect_costs,
)
from quantry.torchfront.freezing import current_params
from quantry.torchfront.quantized_module import QuantizedModule, fake_quantizers

_OCTAVES = 3
"""Candidates reach this many powers of two up and down from the calibrated scale, which is rarely further off."""

_PER_OCTAVE = 4
"""Number of candidates per power of two for scales that need not be powers of two."""


def choose_scales(
    module: QuantizedModule, batches: Iterable[Any], importance: Importance | None = None, *, seed: int = 0
) -> int:
    """Give every quantizer the scale whose rounding error costs the results least; needs no labels.

    Candidates are up to three powers of two away: whole powers for power-of-two scales, quarters of them for others.
    Tensors that NPU limits tie to one position get a joint scale. The other NPU limits are applied afterwards.

    Args:
        module: The result of quantization after training, with scales that are not learned; it is changed in place.
        batches: Some calibration batches: tensors, or tuples whose first item is one. A few dozen images are enough.
        importance: Cost of errors of the results; None uses the squared error of each result relative to its energy.
        seed: Seed of the random directions.

    Returns:
        The number of scales that changed.

    Raises:
        DataError: There are no batches.
        ModelError: The module is not quantized, or is frozen.
        RecipeError: Scales are learned.

    Example:
        >>> quantized = quantizer.quantize_model(graph, pictures)  # doctest: +SKIP
        >>> choose_scales(quantized, pictures, lambda rows: rows[..., 4:5].detach().expand_as(rows))  # doctest: +SKIP
    """
    check_scales_are_fixed(module, "choose_scales")
    costs = {
        name: _ScaleCosts(quantizer, 2.0 ** np.arange(-_OCTAVES, _OCTAVES + _step(quantizer) / 2, _step(quantizer)))
        for name, quantizer in fake_quantizers(module).items()
    }
    collect_costs(module, costs, batches, importance, seed)
    moved = 0
    for names in tied_scales(module):
        tied_costs = [costs[name] for name in names if name in costs and costs[name].seen]
        if len(tied_costs) == len(names):
            moved += _moved(tied_costs)
    definition = module.definition
    if definition.recipe.scale.npu is not None:
        model, params = definition.model.model, current_params(module)
        refined = refine_for_npu(model, definition.plan, params, definition.recipe.scale.npu)
        for name, quantizer in fake_quantizers(module).items():
            quantizer.scale.copy_(torch.tensor(refined.tensors[name].scale))
    return moved


@dataclass(eq=False)
class _ScaleCosts:
    """The costs of the candidates for the scale of one quantizer.

    Attributes:
        quantizer: The quantizer.
        factors: Candidates as factors of the current scale, [candidates].
        costs: [candidates, scales].
        seen: Whether the results depend on the tensor, so that there are costs.
    """

    quantizer: FakeQuantizer
    factors: npt.NDArray[np.float64]
    costs: Tensor = field(init=False)
    seen: bool = False

    def __post_init__(self) -> None:
        self.costs = torch.zeros(len(self.factors), self.quantizer.scale.numel(), dtype=torch.float64)

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add the costs of a batch."""
        self.seen = True
        quantizer = self.quantizer
        self.costs += candidate_errors(values, gradient, Candidates.of(quantizer, self.factors), quantizer.axis)


def _step(quantizer: FakeQuantizer) -> float:
    return 1.0 if quantizer.is_power_of_two else 1.0 / _PER_OCTAVE


def _moved(tied: list[_ScaleCosts]) -> int:
    """Give tied quantizers the scale with the least cost; return how many changed."""
    best = [tied[0].factors[tied[0].costs.argmin(0).numpy()]] if len(tied) == 1 else _joint(tied)
    count = 0
    for entry, factor in zip(tied, best, strict=True):
        scale = entry.quantizer.scale
        count += int(np.any(factor != 1.0))
        scale.mul_(torch.as_tensor(factor, dtype=scale.dtype, device=scale.device).reshape(scale.shape))
    return count


def _joint(tied: list[_ScaleCosts]) -> list[npt.NDArray[np.float64]]:
    """Return the factors that bring all quantizers to the joint scale with the least total cost."""
    scales = np.array([float(entry.quantizer.scale) for entry in tied])
    exponents = nearest_exponent(scales / scales[0]).astype(int)
    middle = len(tied[0].factors) // 2
    best, cheapest = 0, np.inf
    for exponent in range(int(exponents.max()) - middle, int(exponents.min()) + middle + 1):
        cost = sum(
            float(entry.costs[exponent - offset + middle]) for entry, offset in zip(tied, exponents, strict=True)
        )
        if cost < cheapest:
            best, cheapest = exponent, cost
    return [np.array([2.0 ** (best - offset)]) for offset in exponents]


def tied_scales(module: QuantizedModule) -> list[list[str]]:
    """Return the names of quantizers in groups that must have the same number of fraction bits."""
    plan, limits = module.definition.plan, module.definition.recipe.scale.npu
    # Union-find: each name points to another member of its group, the first one to itself.
    leader = {name: name for name in module.layout.quantizers}

    def first(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    aligned = [limit for limit in LIMITS if hasattr(limit, "operators") and getattr(limits, limit.name, False)]
    operators = {operator for limit in aligned for operator in limit.operators}
    for node in module.definition.model.model.graph:
        if node.op_type in operators and node.name in plan.quantized_nodes:
            values = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
            roots = [plan.root(name) for name in values if name in plan.activations]
            for left, right in itertools.pairwise(roots):
                leader[first(left)] = first(right)
    groups: dict[str, list[str]] = {}
    for name in leader:
        groups.setdefault(first(name), []).append(name)
    return list(groups.values())
