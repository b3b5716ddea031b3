"""What a deployment target is."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from quantry.errors import ModelError, RecipeError
from quantry.graph.float_model import FloatModel
from quantry.recipe import PRESETS, Recipe
from quantry.recipe.checked import Checked
from quantry.targets.backends import Backend
from quantry.targets.rules import TargetRule, Types


@dataclass(frozen=True)
class Target(Checked):
    """A deployment target as data.

    Attributes:
        name: Its name on the command line and in recipes.
        summary: One line for tables.
        recommended: Names of the presets to start from, best first.
        rules: What it wants of a quantized model.
        backend: The backend that runs models for it, or its name; empty if only its rules are known.
        float_elsewhere: Whether float nodes run on another device, so that one in the middle cuts the graph in two.
        notes: What else a user should know.
        file: The file that defines it; empty for built-in targets.
    """

    name: str
    summary: str
    recommended: tuple[str, ...]
    rules: tuple[TargetRule, ...] = ()
    backend: str | Backend = ""
    float_elsewhere: bool = False
    notes: tuple[str, ...] = ()
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for preset in self.recommended:
            if preset.upper() not in PRESETS:
                raise RecipeError(f"Target.recommended must name presets, got {preset!r}; in the target {self.name!r}")

    @property
    def types(self) -> Types | None:
        """The types that the target computes with; None if it takes all."""
        return next((rule for rule in self.rules if isinstance(rule, Types)), None)

    # Going through all presets takes 2 ms, and searches ask again and again.
    @cached_property
    def presets(self) -> tuple[str, ...]:
        """Every preset that the target accepts, cheapest first: fewer bits, then fewer scales, then less tuning."""
        accepted = [name for name, preset in PRESETS.items() if not self.conflicts(self.adapted(preset.recipe))]
        return tuple(sorted(accepted, key=lambda name: _cost(PRESETS[name].recipe)))

    def conflicts(self, recipe: Recipe) -> tuple[str, ...]:
        """Return why a recipe does not suit the target; empty if it does.

        Args:
            recipe: The recipe, as `adapted` returns it.

        Returns:
            One sentence per conflict: the rule, what the recipe asks for, and what the target would do.
        """
        return tuple(
            f"{rule.name}: {conflict}" + (f"; otherwise {rule.consequence}" if rule.consequence else "")
            for rule in self.rules
            for conflict in rule.conflicts(recipe)
        )

    def adapted(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the options that the rules ask for, as far as options of the recipe allow it.

        Args:
            recipe: Any recipe.
        """
        adapted = replace(recipe, target=self.file or self.name)
        for rule in self.rules:
            # A recipe that excludes the options of a rule has a conflict with it, which `conflicts` explains.
            with contextlib.suppress(RecipeError):
                adapted = rule.legalized(adapted)
        return adapted

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe that writes models for this target.

        Args:
            recipe: Any recipe.

        Raises:
            RecipeError: The recipe does not suit the target; the message has every reason.
        """
        adapted = self.adapted(recipe)
        conflicts = self.conflicts(adapted)
        if conflicts:
            accepted = ", ".join(self.recommended)
            raise RecipeError(
                f"the recipe must suit the target {self.name}, got {recipe.name!r}: {'; '.join(conflicts)}. Start from "
                f"{accepted}; `quantry targets {self.name}` lists all presets that it takes"
            )
        return adapted

    def refusals(self, model: FloatModel) -> Iterator[str]:
        """Yield why a prepared float model cannot be quantized for this target at all.

        Args:
            model: The model.
        """
        for rule in self.rules:
            for refusal in rule.refusals(model):
                yield f"a model for {self.name} must have {rule.name}, got {refusal}; otherwise {rule.consequence}"

    def require_fitting(self, model: FloatModel) -> None:
        """Check that a prepared float model can be quantized for this target at all.

        Args:
            model: The model.

        Raises:
            ModelError: It cannot; the message says why.
        """
        for refusal in self.refusals(model):
            raise ModelError(refusal)


def _cost(recipe: Recipe) -> tuple[int, ...]:
    plan = recipe.plan
    activation = 32 if plan.weights_only else plan.activation.dtype.bits
    steps = (recipe.mix.mixed is not None) + 2 * len(recipe.tune.steps) + (recipe.equalize.smooth is not None)
    return max(activation, plan.weight.dtype.bits), activation + plan.weight.dtype.bits, steps
