"""What a deployment target is."""

from dataclasses import dataclass
from functools import cached_property

from quantry.errors import RecipeError
from quantry.recipe import PRESETS, Recipe
from quantry.recipe.checked import Checked
from quantry.targets.rules import Rule, Types


@dataclass(frozen=True)
class Target(Checked):
    """A deployment target as data.

    Attributes:
        name: Its name on the command line and in recipes.
        summary: One line for tables.
        recommended: Names of the presets to start from, best first.
        rules: What it wants of a quantized model.
        backend: Name of the backend that runs models for it; empty if only its rules are known.
        notes: What else a user should know.
    """

    name: str
    summary: str
    recommended: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    backend: str = ""
    notes: tuple[str, ...] = ()

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
        accepted = [name for name, preset in PRESETS.items() if not self.conflicts(preset.recipe)]
        return tuple(sorted(accepted, key=lambda name: _cost(PRESETS[name].recipe)))

    def conflicts(self, recipe: Recipe) -> tuple[str, ...]:
        """Return why a recipe does not suit the target; empty if it does.

        Args:
            recipe: The recipe.

        Returns:
            One sentence per conflict: the rule, what the recipe asks for, and what the target would do.
        """
        return tuple(
            f"{rule.name}: {conflict}" + (f"; otherwise {rule.consequence}" if rule.consequence else "")
            for rule in self.rules
            for conflict in rule.conflicts(recipe)
        )


def _cost(recipe: Recipe) -> tuple[int, ...]:
    plan = recipe.plan
    activation = 32 if plan.weights_only else plan.activation.dtype.bits
    steps = (recipe.mix.mixed is not None) + 2 * len(recipe.tune.steps) + (recipe.equalize.smooth is not None)
    return max(activation, plan.weight.dtype.bits), activation + plan.weight.dtype.bits, steps
