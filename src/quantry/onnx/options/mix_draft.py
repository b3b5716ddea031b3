"""Mixed precision under construction: the keys of ``AutoMixprecision`` before they are one goal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quantry.errors import RecipeError
from quantry.recipe import (
    Bias,
    LayerCount,
    LayerTarget,
    MixedPrecision,
    TensorSpec,
    WithinDrop,
    WithinError,
)

_ALL = 10**9
_DICT = "extra_options['AutoMixprecision']"

Score = Callable[..., Any]


@dataclass(frozen=True)
class MixDraft:
    """What the keys read so far ask for.

    Attributes:
        activation: What layers may read instead.
        weight: What weights may become instead.
        bias: What biases may become instead.
        targets: What layers may become, given whole.
        operators: Operator types of the layers that may change; empty for those that usually do.
        include: Only these layers.
        exclude: Not these layers.
        output: Index of the output that counts.
        samples: Samples that say how much a layer matters; None for as many as usual.
        unshared_inputs: Leave layers alone whose input other nodes read too.
        drop: How far the score may fall.
        error: How large the mean square error may become.
        count: How many layers change.
        threshold: The limit of the metric; 0 lets all layers change.
        metric: The metric.
        score: The user's function of outputs.
    """

    activation: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    targets: tuple[LayerTarget, ...] = ()
    operators: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    output: int | None = None
    samples: int | None = None
    unshared_inputs: bool = False
    drop: float | None = None
    error: float | None = None
    count: int | None = None
    threshold: float = 0.0
    metric: str = "l2"
    score: Score | None = None

    def mixed(self) -> MixedPrecision:
        """Return the finished options.

        Raises:
            RecipeError: A key is missing that another needs; the message names it.
        """
        fixed: dict[str, Any] = {"operators": self.operators} if self.operators else {}
        if self.samples is not None:
            fixed["samples"] = self.samples
        return MixedPrecision(
            self._targets(),
            self._goal(),
            include=self.include,
            exclude=self.exclude,
            output=self.output,
            unshared_inputs=self.unshared_inputs,
            **fixed,
        )

    def _targets(self) -> tuple[LayerTarget, ...]:
        if self.targets:
            return self.targets
        if self.activation is None and self.weight is None:
            raise RecipeError(
                f"{_DICT} must say what layers may become with include_auto_mp=True: ActTargetQuantType and "
                "WeightTargetQuantType, or TargetLayerConfig; got none of them"
            )
        return (LayerTarget(self.activation, self.weight, self.bias),)

    def _goal(self) -> WithinError | WithinDrop | LayerCount:
        if self.drop is not None and self.score is None:
            raise RecipeError(f"{_DICT}['Top1AccTarget'] needs EvaluateFunction, which scores outputs; got none")
        if self.drop is not None:
            return WithinDrop(self.drop)
        if self.error is not None:
            return WithinError(self.error)
        if self.count is not None:
            return LayerCount(self.count)
        if self.score is not None:
            return WithinDrop(self.threshold)
        if self.threshold:
            return WithinError(_limit(self.metric, self.threshold), self.metric)
        if not self.targets:
            raise RecipeError(
                f"{_DICT} must say what to reach: Top1AccTarget with EvaluateFunction, L2Target or NumTarget; got none"
            )
        return LayerCount(_ALL)


def _limit(metric: str, threshold: float) -> float:
    """Return a threshold of AMD Quark, where less is always better, in the unit of our metric."""
    return {"l2": threshold, "cosine": 1 - threshold}.get(metric, -threshold)
