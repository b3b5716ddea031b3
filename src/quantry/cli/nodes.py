"""``quantry nodes``: list the nodes of a model and the types they would get, to write selections."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import current_output
from quantry.errors import ModelError, RecipeError
from quantry.recipe import Recipe, resolve_recipe
from quantry.recipe.json_result import JsonResult

if TYPE_CHECKING:
    from quantry.graph.float_model import FloatModel
    from quantry.graph.quant_plan import QuantPlan
    from quantry.memo import Handle, Memo
    from quantry.plan import InsidePlan, NodeOverview

_DEFAULT_PRESET = "S8S8_AAWS"

_WIDE = 100
_COLUMNS = {
    **{name: name for name in ("node", "operator", "outputs", "reads", "constants", "writes")},
    "reason": "float because",
}


@dataclass(frozen=True)
class NodesResult(JsonResult):
    """The nodes of a model and the types they would get.

    Attributes:
        model: The model.
        recipe: Name of the recipe.
        nodes: One entry per node.
    """

    model: Path
    recipe: str
    nodes: "tuple[NodeOverview, ...]"


def nodes(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", help="Name of a preset; see `quantry presets`.", show_default=_DEFAULT_PRESET),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="Recipe file, YAML or JSON, or a preset's name.")
    ] = None,
    only_float: Annotated[bool, typer.Option("--float", help="Only nodes that stay float.")] = False,
) -> None:
    """List the nodes of a model with their operator, their types, and the reason if they stay float.

    The names are those of the prepared graph: use them, or the names of outputs, in `plan.selection` and `plan.layers`
    of a recipe and in `--exclude`. Needs no data; mixed precision is not applied.
    """
    if preset and recipe:
        raise RecipeError(f"give --preset or --recipe, not both; got {preset!r} and {recipe!r}")
    resolved, _ = resolve_recipe(recipe or preset or _DEFAULT_PRESET)
    rows = tuple(entry for entry in _overview(model, resolved) if entry.reason or not only_float)
    in_float = sum(bool(row.reason) for row in rows)
    table = Table(title=f"{len(rows)} nodes, {in_float} of them float", box=SIMPLE, pad_edge=False)
    output = current_output()
    # Outputs are mostly named after their nodes, so a narrow terminal does without them.
    omitted = {"outputs": output.answer.width < _WIDE, "reason": not in_float}
    columns = [key for key in _COLUMNS if not omitted.get(key)]
    for key in columns:
        table.add_column(_COLUMNS[key], overflow="fold")
    for row in rows:
        cells = (getattr(row, key) for key in columns)
        table.add_row(*(escape(cell if isinstance(cell, str) else ", ".join(cell)) for cell in cells))
    output.answer.print(table)
    output.result(NodesResult(model, resolved.name, rows))


def _overview(model: Path, recipe: Recipe) -> "list[NodeOverview]":
    from quantry.graph.load import model_source
    from quantry.memo import Memo
    from quantry.pipeline import follow_names, run_prepare

    memo = Memo(None)
    source = model_source(model)
    cleaned = run_prepare(source, recipe, memo)
    recipe, _ = follow_names(source, cleaned, recipe)
    return _planned(cleaned, recipe, memo)[0]


def _planned(cleaned: "Handle[FloatModel]", recipe: Recipe, memo: "Memo") -> tuple[list["NodeOverview"], "QuantPlan"]:
    """Return every node and the plan; the nodes of a body follow the others, as if some sample ran it."""
    from quantry.equalize import equalize
    from quantry.graph.bodies import states_of
    from quantry.observe import body_as_model
    from quantry.pipeline import run_convert
    from quantry.plan import overview, plan, planned_bodies, recipe_inside, recipe_outside
    from quantry.recipe import EqualizeOptions

    graph = cleaned.value.model.graph
    inside: list[InsidePlan] = []
    nodes: list[NodeOverview] = []
    for call in planned_bodies(graph, recipe):
        try:
            body = memo.run(body_as_model, cleaned, call)
        except ModelError:  # what it reads is known only when the model runs
            continue
        inner_recipe = recipe_inside(recipe, graph, body.value.model.graph, states_of(graph, call))
        entries, inner_plan = _planned(body, inner_recipe, memo)
        inside.append((call, inner_plan))
        nodes += entries
    recipe = recipe_outside(recipe, inside)
    prepared = run_convert(cleaned, recipe, memo).value
    if recipe.equalize.cross_layer is not None:
        prepared = equalize(prepared, EqualizeOptions(recipe.equalize.cross_layer))
    outer_plan = plan(prepared, recipe.plan, tuple(inside))
    return [*overview(prepared, outer_plan), *nodes], outer_plan
