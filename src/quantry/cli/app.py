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
from quantry.cli.convert import convert
from quantry.cli.demo import demo
from quantry.cli.interrupt import ended_by_interrupt
from quantry.cli.nodes import nodes
from quantry.cli.presets import presets
from quantry.cli.quantize import quantize
from quantry.cli.search import search
from quantry.errors import StageError, UserError

app = typer.Typer(
    name="quantry",
    help="Turn a float neural network into the quantized one you can ship.",
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
# Everything behind the script's name belongs to the script, whatever it looks like.
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(compat)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside.")] = False,
) -> None:
    if version:
        typer.echo(quantry.__version__)
        raise typer.Exit
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(message)s")


def main() -> None:
    """Run the command line; an error of the user's is one line, not a traceback."""
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
        errors.print("Run again with --verbose; if the model is sound, this is a defect of quantry.")
        sys.exit(1)
