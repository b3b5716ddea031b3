"""Check an existing quantized model against the rules of a target."""

from quantry.graph.load import ModelLike
from quantry.targets.registry import find_target
from quantry.targets.rules.graph import StaticFormats
from quantry.targets.rules.rule import CheckedModel, Violation
from quantry.targets.target import Target


def check_model(model: ModelLike | CheckedModel, target: Target | str) -> tuple[Violation, ...]:
    """Return where a quantized model breaks a rule of a target.

    Args:
        model: A model with QuantizeLinear and DequantizeLinear nodes of any dialect, with FixNeuron nodes, or with
            integer operators (QOperator): a path, bytes, a proto or an onnx-ir model; or a model read before.
        target: The target or its name.

    Returns:
        The violations, rule by rule, each in graph order; empty if the target takes the model as it is.

    Raises:
        ModelError: The model cannot be read or is not quantized.
        RecipeError: There is no such target.

    Example:
        >>> for violation in check_model("model.int8.onnx", "vitisai"):  # doctest: +SKIP
        ...     print(violation)
    """
    rules = find_target(target).rules
    read = model if isinstance(model, CheckedModel) else CheckedModel(model)
    foreign = tuple(
        violation for rule in rules if isinstance(rule, StaticFormats) for violation in rule.violations(read)
    )
    if foreign and not read.is_quantized:
        return foreign
    read.require_quantized()
    return tuple(violation for rule in rules for violation in rule.violations(read))
