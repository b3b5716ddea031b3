"""``quantry compat``: run a script written for AMD Quark or vai_q_onnx."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quantry.cli.frame import ExitCode, current_output
from quantry.errors import QuantryError, RecipeError
from quantry.recipe.json_result import JsonResult

_ARGUMENTS = "Arguments of the script."


@dataclass(frozen=True)
class CompatResult(JsonResult):
    """A script for another tool.

    Attributes:
        script: The script.
        missing: What it uses and quantry lacks.
        ran: Whether it ran.
    """

    script: Path
    missing: tuple[str, ...]
    ran: bool


def compat(
    script: Annotated[Path, typer.Argument(help="A script for quark.onnx, quark.torch or vai_q_onnx.")],
    arguments: Annotated[list[str] | None, typer.Argument(help=_ARGUMENTS)] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Only report what the script uses and quantry lacks.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run the script even if something is missing.")] = False,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")] = False,
) -> None:
    """Run a script written for AMD Quark or vai_q_onnx unchanged; options of quantry go before SCRIPT."""
    if str(script).startswith("-") and not script.exists():
        raise RecipeError(
            f"SCRIPT must come before its own options, got {script}; write `quantry compat SCRIPT {script} ...`; "
            "only --scan, --anyway and -m go before SCRIPT"
        )

    from quantry.compat import run_module, run_script, scan_script

    output = current_output()
    errors = Console(stderr=True, quiet=output.json)
    missing = () if module else scan_script(script)
    names = tuple(map(str, missing))
    for name in names:
        errors.print(f"[bold red]missing:[/] {escape(name)}", soft_wrap=True)
    if scan:
        if not missing:
            errors.print("nothing is missing")
        output.result(CompatResult(script, names, ran=False), ExitCode.USAGE if missing else ExitCode.GOOD)
        return
    if missing and not anyway:
        errors.print("The script was not started; use --anyway before its name to start it anyway.")
        output.result(CompatResult(script, names, ran=False), ExitCode.USAGE)
        return
    try:
        if module:
            run_module(str(script), arguments or ())
        else:
            run_script(script, arguments or ())
    except QuantryError:
        raise
    except Exception:
        # The script's own error: its author needs the traceback.
        traceback.print_exc()
        output.result(CompatResult(script, names, ran=True), ExitCode.FAILED)
        return
    output.result(CompatResult(script, names, ran=True))
