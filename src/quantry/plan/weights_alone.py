"""Plans of weights alone: what is left of an annotation where every activation stays float."""

from dataclasses import replace

from quantry.plan.rules import Annotation, Declined
from quantry.recipe import DerivedBias, PlanOptions


def weights_alone(annotation: Annotation, options: PlanOptions) -> Annotation | Declined:
    """Return the part of an annotation that needs no activation.

    Args:
        annotation: What a rule said of a node.
        options: Whether the bias has a scale of its own.
    """
    if annotation.weight is None:
        return Declined("it has no constant weight, and only weights are quantized")
    derived = isinstance(options.bias, DerivedBias)
    return replace(annotation, activations=(), constants=(), bias=None if derived else annotation.bias, output=None)
