"""``quantry check``: can the target run this model?"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import ExitCode, current_output
from quantry.recipe.json_result import JsonResult

if TYPE_CHECKING:
    from quantry.targets import Accumulator, CheckedModel, Target, Violation

_DEFAULT = "vitisai for power-of-two scales, else ort-cpu"


@dataclass(frozen=True)
class CheckResult(JsonResult):
    """How a model follows the rules of a target.

    Attributes:
        model: The model.
        target: The target.
        violations: Broken rules.
        accumulators: Proofs that accumulators do not overflow.
    """

    model: Path
    target: str
    violations: "tuple[Violation, ...]"
    accumulators: "tuple[Accumulator, ...]"


def check(
    model: Annotated[Path, typer.Argument(help="Quantized ONNX model.")],
    target: Annotated[
        str | None, typer.Option(help="Name of a target; see `quantry targets`.", show_default=_DEFAULT)
    ] = None,
) -> None:
    """Check a quantized model against the rules of a target; exit code 3 if one is violated."""
    from quantry.targets import CheckedModel, check_model, find_target, prove_accumulators, target_of_model

    deployed = target_of_model(model) if target is None else find_target(target)
    read = CheckedModel(model)
    violations = check_model(read, deployed)
    proofs = prove_accumulators(read)
    _show(model, deployed, violations)
    _show_excluded(read, deployed)
    _show_proofs(proofs)
    code = ExitCode.NOT_GOOD_ENOUGH if violations else ExitCode.GOOD
    current_output().result(CheckResult(model, deployed.name, violations, proofs), code)


def _show(model: Path, target: "Target", violations: tuple["Violation", ...]) -> None:
    console = current_output().answer
    if not violations:
        console.print(f"[bold]{escape(str(model))}[/] satisfies all constraints of {target.name}.", soft_wrap=True)
        return
    table = Table(title=f"{_counted(len(violations))} of {target.name}", show_lines=console.is_terminal)
    for heading in ("node", "rule", "values", "what to change"):
        table.add_column(heading, overflow="fold")
    for violation in violations:
        table.add_row(*(escape(cell) for cell in (violation.node, violation.rule, violation.values, violation.change)))
    console.print(table)
    _sum_up(console, target, violations)


def _show_excluded(read: "CheckedModel", target: "Target") -> None:
    if not target.float_elsewhere or not read.excluded:
        return
    names = ", ".join(sorted(read.excluded))
    text = f"{len(read.excluded)} nodes run in float on the CPU, because the recipe excludes them: {names}"
    current_output().console.print(escape(text), soft_wrap=True)


def _show_proofs(proofs: tuple["Accumulator", ...]) -> None:
    if not proofs:
        return
    widest = max(proofs, key=lambda proof: proof.bits)
    tied = [proof for proof in proofs if proof.ties]
    proven = sum(proof.fits for proof in proofs)
    sums = f"the widest sums need {widest.bits} bits ({widest.node})"
    lines = [f"{proven} of {len(proofs)} layers proven free of int32 overflow; {sums}"]
    if tied:
        most = max(tied, key=lambda proof: proof.ties)
        lines.append(
            f"{len(tied)} layers have ties in requantization, which targets round differently; at most 1 in "
            f"{round(1 / most.ties)} sums ({most.node})"
        )
    for line in lines:
        current_output().console.print(escape(line), soft_wrap=True)


def _sum_up(console: Console, target: "Target", violations: tuple["Violation", ...]) -> None:
    rules = Counter(violation.rule for violation in violations)
    counts = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    console.print(f"{_counted(len(violations))}: {escape(counts)}", soft_wrap=True)
    for consequence in dict.fromkeys(violation.consequence for violation in violations if violation.consequence):
        broken = dict.fromkeys(entry.rule for entry in violations if entry.consequence == consequence)
        console.print(f"  {escape(', '.join(broken))}: otherwise {escape(consequence)}", soft_wrap=True)
    decisive = {rule.name for rule in target.rules if rule.whole_model}
    if decisive & rules.keys():
        names = " or ".join(name.lower() for name in target.recommended)
        console.print(
            f"The model was quantized for another target. Quantize the float model with --target {target.name}, or "
            f"with --recipe {names}, which satisfy these rules.",
            soft_wrap=True,
        )


def _counted(number: int) -> str:
    return f"{number} violation{'' if number == 1 else 's'}"
