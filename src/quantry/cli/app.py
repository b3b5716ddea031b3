"""The ``quantry`` command."""

import logging
import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import quantry
from quantry.cli.check import check
from quantry.cli.compat import compat
from quantry.cli.console import ended_by_interrupt
from quantry.cli.convert import convert
from quantry.cli.demo import demo
from quantry.cli.nodes import nodes
from quantry.cli.presets import presets
from quantry.cli.quantize import quantize
from quantry.cli.search import search
from quantry.errors import StageError, UserError

app = typer.Typer(
    name="quantry",
    help="Quantize neural networks for NPUs and CPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(quantize)
app.command()(search)
app.command()(presets)
app.command()(nodes)
app.command()(convert)
app.command()(check)
app.command()(demo)
# Everything after the script's name belongs to the script.
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(compat)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print log messages.")] = False,
) -> None:
    if version:
        typer.echo(quantry.__version__)
        raise typer.Exit
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(message)s")


def main() -> None:
    """Run the command line. A user's mistake prints one line instead of a traceback."""
    errors = Console(stderr=True)
    warnings.showwarning = lambda message, *_: errors.print(
        f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True
    )
    try:
        with ended_by_interrupt():
            app()
    except UserError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except StageError as error:
        errors.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
        errors.print("Run again with --verbose for details. If your model is valid, please report this as a bug.")
        sys.exit(1)
