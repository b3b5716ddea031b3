"""``quantry check``: can the target run this model?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.errors import RecipeError, nearest_spelling

_TARGETS = ("npu-int8",)


def check(
    model: Annotated[Path, typer.Argument(help="Quantized ONNX model.")],
    target: Annotated[str, typer.Option(help=f"One of: {', '.join(_TARGETS)}.")] = _TARGETS[0],
) -> None:
    """Verify a quantized model against the constraints of a target; exits with 1 where one does not hold."""
    from quantry.check import check_npu

    if target not in _TARGETS:
        raise RecipeError(
            f"--target must be one of {', '.join(_TARGETS)}, got {target!r}{nearest_spelling(target, _TARGETS)}"
        )
    violations = check_npu(model)
    console = Console()
    if not violations:
        console.print(f"[bold]{escape(str(model))}[/] keeps all constraints of {target}.", soft_wrap=True)
        return
    table = Table(title=f"{len(violations)} violations of {target}", show_lines=True)
    for heading in ("node", "rule", "values", "what to change"):
        table.add_column(heading, overflow="fold")
    for violation in violations:
        table.add_row(*(escape(part) for part in (violation.node, violation.rule, violation.values, violation.change)))
    console.print(table)
    raise typer.Exit(1)
