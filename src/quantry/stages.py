"""The one table of stages: when a recipe runs one, what its result depends on, and what it costs.

The pipeline runs its rewrites in this order, the cost model predicts trials from it, and the table in
docs/architecture.md is written from it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantry.equalize import (
    WeightActivationTypes,
    equalize,
    equalize_jointly,
    fit_powers,
    group_channels,
    joint_needs,
    rotate,
    smooth,
    smooth_needs,
)
from quantry.graph.float_model import FloatModel
from quantry.memo import Stage
from quantry.observe import Needs
from quantry.recipe import EqualizeOptions, Recipe

StageKey = tuple[str, Any]
"""A kind of work and a key that is equal for two recipes if they share its result."""


@dataclass(frozen=True)
class Rewrite:
    """A stage that changes the float model and keeps its function.

    Attributes:
        option: The field of `EqualizeOptions` that switches it on.
        stage: The stage; its arguments are the model, statistics if it observes, and then `arguments`.
        arguments: Its other arguments.
        observes: Whether the model is observed for it.
        needs: The statistics of channels that it needs; without any, it has nothing to do. None needs those of tensors.
    """

    option: str
    stage: Stage[..., FloatModel]
    arguments: Callable[[Recipe], tuple[Any, ...]]
    observes: bool = False
    needs: Callable[[FloatModel, Recipe], Needs] | None = None

    def is_in(self, recipe: Recipe) -> bool:
        """Return whether a recipe asks for it."""
        return getattr(recipe.equalize, self.option) is not None


REWRITES: tuple[Rewrite, ...] = (
    Rewrite("rotate", rotate, lambda recipe: (recipe.equalize.rotate,)),
    Rewrite(
        "joint",
        equalize_jointly,
        lambda recipe: (recipe.equalize.joint, _types(recipe)),
        observes=True,
        needs=lambda model, recipe: joint_needs(model, _types(recipe)),
    ),
    Rewrite(
        "smooth",
        smooth,
        lambda recipe: (
            recipe.equalize.smooth,
            _types(recipe),
            recipe.equalize.joint is not None,
        ),
        observes=True,
        needs=lambda model, recipe: _smooth_needs(model, recipe.equalize),
    ),
    Rewrite("cross_layer", equalize, lambda recipe: (EqualizeOptions(recipe.equalize.cross_layer),)),
    Rewrite("groups", group_channels, lambda recipe: (recipe.equalize.groups, recipe.plan.weight)),
    Rewrite(
        "powers",
        fit_powers,
        lambda recipe: (recipe.equalize.powers, _types(recipe)),
        observes=True,
    ),
)
"""Rewrites in the order in which they run."""


def _types(recipe: Recipe) -> WeightActivationTypes:
    return WeightActivationTypes.of(recipe.plan)


def _smooth_needs(model: FloatModel, options: EqualizeOptions) -> Needs:
    assert options.smooth is not None
    return smooth_needs(model, options.smooth, options.joint is not None)


@dataclass(frozen=True)
class Work:
    """One kind of work, whose time is predicted together.

    Attributes:
        name: Its name.
        stages: Names of the stages that are part of it.
        does: What it does, for the table in docs/architecture.md.
        seconds: Its time relative to the other kinds, measured on a small convolutional network; used until it has run.
        is_shared: Whether trials that share its result should be neighbours: it runs the model or rewrites all weights.
    """

    name: str
    stages: tuple[str, ...]
    does: str
    seconds: float
    is_shared: bool = False


WORK: tuple[Work, ...] = (
    Work("prepare", ("prepare",), "cleans up the float graph", 1.0, is_shared=True),
    Work("convert", ("convert",), "replaces what an integer NPU computes otherwise", 0.5, is_shared=True),
    Work(
        "equalize",
        tuple(rewrite.stage.name for rewrite in REWRITES),
        "rescales weights without changing the function",
        0.5,
        is_shared=True,
    ),
    Work("plan", ("plan",), "chooses what is quantized, and to which type", 0.1),
    Work("observe", ("observe",), "runs the float model and keeps statistics", 3.0, is_shared=True),
    Work("mix", ("sensitivity", "mix"), "gives layers other types until a goal is reached", 20.0, is_shared=True),
    Work("scale", ("scale",), "finds scales and zero points", 1.0),
    Work("tune", ("tune", "tuned_model", "tuned_params"), "rounds or trains weights", 60.0),
    Work("emit", ("emit",), "writes the model", 0.5),
    Work("evaluate", ("evaluate", "guard", "closeness"), "compares with the float model", 3.0),
)
"""All kinds of work, in the order in which a recipe needs them."""

WORK_OF: Mapping[str, str] = {stage: work.name for work in WORK for stage in work.stages}
"""Names of stages to the work that they are part of."""


def planned_work(recipe: Recipe) -> tuple[StageKey, ...]:
    """Return the work that a recipe needs, in order; one entry for each float pass and each step of tuning.

    Args:
        recipe: The recipe.
    """
    return tuple(_planned(recipe))


def _planned(recipe: Recipe) -> Iterator[StageKey]:
    model: Any = dataclasses.replace(recipe.prepare, npu=None)
    yield "prepare", model
    if recipe.prepare.npu is not None:
        # Nodes that stay float are not converted, so the selection is part of the key.
        model = (model, recipe.prepare.npu, recipe.plan.selection, recipe.plan.layers)
        yield "convert", model
    rewrites = [rewrite for rewrite in REWRITES if rewrite.is_in(recipe)]
    before: tuple[str, ...] = ()
    for rewrite in rewrites:
        if rewrite.observes:
            # What is observed depends on the rewrites before this one.
            earlier = tuple((option, getattr(recipe.equalize, option)) for option in before)
            yield "observe", (model, earlier, recipe.observe, rewrite.option)
        before = (*before, rewrite.option)
    if rewrites:
        model = (model, recipe.equalize)
        yield "equalize", model
    observed = (model, recipe.observe)
    yield "plan", (model, recipe.plan)
    yield "observe", observed
    planned: Any = recipe.plan
    if recipe.mix != type(recipe.mix)():
        planned = (recipe.plan, recipe.mix)
        yield "mix", (observed, planned)
    scaled = (observed, planned, recipe.scale)
    yield "scale", scaled
    steps = recipe.tune.steps
    for count in range(1, len(steps) + 1):
        yield "tune", (scaled, steps[:count])
    yield "emit", recipe
    yield "evaluate", recipe
