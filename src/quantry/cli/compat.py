"""``quantry compat``: run a script written for AMD Quark or vai_q_onnx."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quantry.errors import RecipeError

_ARGUMENTS = "Arguments of the script."


def compat(
    script: Annotated[Path, typer.Argument(help="A script for quark.onnx, quark.torch or vai_q_onnx.")],
    arguments: Annotated[list[str] | None, typer.Argument(help=_ARGUMENTS)] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Only report what the script uses and quantry lacks.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run the script even if something is missing.")] = False,
) -> None:
    """Run a script written for AMD Quark or vai_q_onnx unchanged; options of quantry go before SCRIPT."""
    if str(script).startswith("-") and not script.exists():
        raise RecipeError(
            f"SCRIPT must come before its own options, got {script}; write `quantry compat SCRIPT {script} ...`; "
            "only --scan and --anyway go before SCRIPT"
        )

    from quantry.compat import run_script, scan_script

    errors = Console(stderr=True)
    missing = scan_script(script)
    for entry in missing:
        errors.print(f"[bold red]missing:[/] {escape(str(entry))}", soft_wrap=True)
    if scan:
        if not missing:
            errors.print("nothing is missing")
        raise typer.Exit(2 if missing else 0)
    if missing and not anyway:
        errors.print("The script was not started; use --anyway before its name to start it anyway.")
        raise typer.Exit(2)
    run_script(script, arguments or ())
