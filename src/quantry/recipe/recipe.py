"""The recipe: options of every stage."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from quantry.notebook import html_details, html_table
from quantry.recipe.checked import Checked, brief
from quantry.recipe.compatibility import check_options
from quantry.recipe.equalization import EqualizeOptions
from quantry.recipe.formats import EmitOptions
from quantry.recipe.mixing import MixOptions
from quantry.recipe.options import EvaluateOptions, ObserveOptions, PlanOptions, PrepareOptions, ScaleOptions
from quantry.recipe.tuning import TuneOptions


@dataclass(frozen=True)
class Difference:
    """One field in which two recipes differ.

    Attributes:
        path: Dotted path of the field, such as ``scale.activation``.
        ours: Its value in the recipe that `diff` was called on.
        theirs: Its value in the other recipe.
    """

    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.ours} -> {self.theirs}"


@dataclass(frozen=True)
class Recipe(Checked):
    """Options of every stage, in the order in which stages run.

    Attributes:
        name: A label for tables and logs; not part of the recipe's identity.
        target: Name of the deployment target, or the path of its file; its rules change and check the other options.
            Empty if there is none.
        prepare: Clean-up of the float graph.
        equalize: Rescales weights without changing the model's output.
        observe: The float pass over the calibration data.
        plan: Which tensors are quantized, and to which types.
        scale: How ranges are chosen.
        mix: Mixed precision.
        tune: Finetuning of weights, biases and scales.
        emit: How the model is written.
        evaluate: How it is compared with the float model.

    Example:
        >>> from quantry.recipe import Percentile, Recipe, ScaleOptions
        >>> Recipe(scale=ScaleOptions(activation=Percentile(99.9))).diff(Recipe())[0].path
        'scale.activation'
    """

    name: str = field(default="custom", compare=False)
    target: str = ""
    prepare: PrepareOptions = PrepareOptions()
    equalize: EqualizeOptions = EqualizeOptions()
    observe: ObserveOptions = ObserveOptions()
    plan: PlanOptions = PlanOptions()
    scale: ScaleOptions = ScaleOptions()
    mix: MixOptions = MixOptions()
    tune: TuneOptions = TuneOptions()
    emit: EmitOptions = EmitOptions()
    evaluate: EvaluateOptions = EvaluateOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.plan, self.scale, self.mix, self.emit)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the fields that differ from their defaults, and all of them as YAML."""
        from quantry.recipe.codec import to_yaml

        rows = [(difference.path, brief(difference.theirs)) for difference in Recipe().diff(self)]
        table = html_table(("field", "value"), rows, f"Recipe {self.name}: differences from the defaults")
        return table + html_details("the whole recipe", to_yaml(self))

    def diff(self, other: "Recipe") -> tuple[Difference, ...]:
        """Return the fields in which two recipes differ.

        Args:
            other: The recipe to compare with.

        Returns:
            One `Difference` per field, as deep as both values have the same type; empty if the recipes are equal.
        """
        return tuple(_differences("", self, other))


def _differences(path: str, ours: Any, theirs: Any) -> list[Difference]:
    if ours == theirs:
        return []
    if type(ours) is not type(theirs) or not dataclasses.is_dataclass(ours):
        return [Difference(path, ours, theirs)]
    return [
        difference
        for entry in dataclasses.fields(ours)
        if entry.compare
        for difference in _differences(
            f"{path}.{entry.name}" if path else entry.name, getattr(ours, entry.name), getattr(theirs, entry.name)
        )
    ]
