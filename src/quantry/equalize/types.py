"""The data types whose rounding errors equalization makes small."""

from dataclasses import dataclass

from quantry.recipe import FUSIBLE_ACTIVATIONS, Bias, OwnBias, PlanOptions, TensorSpec


@dataclass(frozen=True)
class WeightActivationTypes:
    """Types of a model's tensors. Stages read nothing else of the plan, so that other changes of it do not repeat them.

    Attributes:
        activation: Type of activations; None if they stay float.
        weight: Type of weights.
        bias: Type of biases; None if they have no scale of their own.
        fused_activations: Activation functions that are fused with the operator before them: the tensor between both is
            not rounded.
    """

    activation: TensorSpec | None
    weight: TensorSpec
    bias: Bias | None = None
    fused_activations: tuple[str, ...] = FUSIBLE_ACTIVATIONS

    @classmethod
    def of(cls, plan: PlanOptions) -> "WeightActivationTypes":
        """Return the types of a plan."""
        return cls(None if plan.weights_only else plan.activation, plan.weight, plan.bias, plan.fused_activations)

    @property
    def own_bias(self) -> TensorSpec | None:
        """Type of biases that have a scale of their own."""
        return self.bias.spec if isinstance(self.bias, OwnBias) else None

    @property
    def all_integers(self) -> bool:
        """Whether weights, and activations that are quantized, are integers."""
        return self.weight.dtype.is_integer and (self.activation is None or self.activation.dtype.is_integer)
