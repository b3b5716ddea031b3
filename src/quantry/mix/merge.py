"""Takes each tensor's types from one of several plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import (
    ActivationPlan,
    BiasPlan,
    DerivedBiasPlan,
    OwnBiasPlan,
    QuantPlan,
    SharedRange,
    WeightPlan,
)
from quantry.recipe import DerivedBias, OwnBias, nearest_bias


def merge_plans(model: FloatModel, plans: Sequence[QuantPlan], chosen: Mapping[str, int]) -> QuantPlan:
    """Return a plan in which each tensor has the types of the plan chosen for it.

    Args:
        model: The float model.
        plans: Plans of the same tensors.
        chosen: Index of a plan by tensor: activations with a range of their own, weights and biases. A tensor that is
            not in it has the types of the first plan; a bias that is not has those chosen for the weight of its layer.
    """
    base = plans[0]
    activations: dict[str, ActivationPlan] = {
        name: entry if isinstance(entry, SharedRange) else plans[chosen.get(name, 0)].activations[name]
        for name, entry in base.activations.items()
    }
    weights: dict[str, WeightPlan] = {
        name: replace(plans[chosen.get(name, 0)].weights[name], users=entry.users)
        for name, entry in base.weights.items()
    }
    merged = replace(base, activations=activations, weights=weights, biases={})
    weight_of = _weights_of_biases(model, base)
    biases: dict[str, BiasPlan] = {}
    for name in _bias_names(plans):
        choice = chosen.get(name, chosen.get(weight_of.get(name, ""), 0))
        planned = _bias(plans[choice].biases.get(name), _derivation(name, plans), merged)
        if planned is not None:
            biases[name] = planned
    return replace(merged, biases=biases)


def _bias_names(plans: Sequence[QuantPlan]) -> list[str]:
    return list(dict.fromkeys(name for plan in plans for name in plan.biases))


def _derivation(name: str, plans: Sequence[QuantPlan]) -> DerivedBiasPlan | None:
    found = (plan.biases.get(name) for plan in plans)
    return next((entry for entry in found if isinstance(entry, DerivedBiasPlan)), None)


def _bias(wanted: BiasPlan | None, derivation: DerivedBiasPlan | None, merged: QuantPlan) -> BiasPlan | None:
    """Return a bias that goes with what its layer reads and its weight in the merged plan."""
    if derivation is None:
        return wanted
    data, weight = merged.spec_of(derivation.input), merged.spec_of(derivation.weight)
    if data is None or weight is None:
        return wanted
    # A plan with coarser types may derive what this mixture cannot, and where all can be derived, it is.
    nearest = nearest_bias(DerivedBias(), data, weight)
    if isinstance(nearest, DerivedBias):
        return derivation
    if isinstance(wanted, OwnBiasPlan):
        return wanted
    return OwnBiasPlan(nearest.spec) if isinstance(nearest, OwnBias) else None


def _weights_of_biases(model: FloatModel, plan: QuantPlan) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        weight = next((name for name in names if name in plan.weights), None)
        for name in names:
            if weight is not None and name != weight and name not in plan.weights and name not in plan.activations:
                found.setdefault(name, weight)
    return found
