"""``quantry check``: can the target run this model?"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import ExitCode, current_output
from quantry.errors import RecipeError, nearest_spelling

if TYPE_CHECKING:
    from quantry.check import Violation

_TARGETS = ("npu-int8",)

# Rules about the whole model, which changing single scales does not fix.
_OF_THE_RECIPE = ("format", "power of two", "per tensor", "zero point", "type")


def check(
    model: Annotated[Path, typer.Argument(help="Quantized ONNX model.")],
    target: Annotated[str, typer.Option(help=f"One of: {', '.join(_TARGETS)}.")] = _TARGETS[0],
) -> None:
    """Check a quantized model against the constraints of a target; exit code 3 if one is violated."""
    from quantry.check import check_npu

    if target not in _TARGETS:
        raise RecipeError(
            f"--target must be one of {', '.join(_TARGETS)}, got {target!r}{nearest_spelling(target, _TARGETS)}"
        )
    violations = check_npu(model)
    _show(model, target, violations)
    current_output().result(
        {"model": model, "target": target, "violations": violations},
        ExitCode.NOT_GOOD_ENOUGH if violations else ExitCode.GOOD,
    )


def _show(model: Path, target: str, violations: tuple["Violation", ...]) -> None:
    console = current_output().answer
    if not violations:
        console.print(f"[bold]{escape(str(model))}[/] satisfies all constraints of {target}.", soft_wrap=True)
        return
    table = Table(title=f"{_counted(len(violations))} of {target}", show_lines=console.is_terminal)
    for heading in ("node", "rule", "values", "what to change"):
        table.add_column(heading, overflow="fold")
    for violation in violations:
        table.add_row(*(escape(part) for part in (violation.node, violation.rule, violation.values, violation.change)))
    console.print(table)
    _sum_up(console, violations)


def _sum_up(console: Console, violations: tuple["Violation", ...]) -> None:
    rules = Counter(violation.rule for violation in violations)
    told = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    console.print(f"{_counted(len(violations))}: {escape(told)}", soft_wrap=True)
    if any(rule in rules for rule in _OF_THE_RECIPE):
        console.print(
            "The model was quantized for another target. Quantize the float model with --preset XINT8 or --recipe "
            "recommended-npu, which satisfy these rules.",
            soft_wrap=True,
        )


def _counted(number: int) -> str:
    return f"{number} violation{'' if number == 1 else 's'}"
