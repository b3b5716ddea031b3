"""The ``quantry`` command."""

import errno
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

import quantry
from quantry.cli import cache as cache_commands
from quantry.cli import recipe as recipe_commands
from quantry.cli.check import check
from quantry.cli.compare import compare
from quantry.cli.compat import compat
from quantry.cli.console import ended_by_interrupt
from quantry.cli.convert import convert
from quantry.cli.demo import demo
from quantry.cli.diagnose import diagnose
from quantry.cli.doctor import doctor
from quantry.cli.evaluate import evaluate
from quantry.cli.frame import ExitCode, current_output, framed, report_error, report_interrupt, set_output
from quantry.cli.help_panels import Command, Group
from quantry.cli.nodes import nodes
from quantry.cli.placement import placement
from quantry.cli.presets import presets
from quantry.cli.quantize import quantize
from quantry.cli.report import report
from quantry.cli.schema import schema
from quantry.cli.search import search
from quantry.cli.serve import serve
from quantry.cli.targets import targets

app = typer.Typer(
    name="quantry",
    cls=Group,
    help="Quantize neural networks for NPUs and CPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_MAIN, _MODELS, _RECIPES, _HOUSE = "Quantize", "Models", "Recipes", "More"


def _add(command: Callable[..., None], panel: str, *examples: str, **settings: Any) -> None:
    """Register a command with the common options, under a heading of the help, with examples at the end of its help."""
    name = command.__name__
    app.command(name, cls=Command, rich_help_panel=panel, epilog=_epilog(examples), **settings)(framed(command, name))


def _add_group(name: str, panel: str, summary: str, commands: dict[Callable[..., None], str]) -> None:
    """Register several commands under one name, each with an example."""
    group = typer.Typer(name=name, cls=Group, help=summary, no_args_is_help=True, rich_markup_mode="rich")
    for command, example in commands.items():
        command_name = command.__name__
        group.command(command_name, cls=Command, epilog=_epilog((example,)))(framed(command, f"{name} {command_name}"))
    app.add_typer(group, rich_help_panel=panel)


def _epilog(examples: tuple[str, ...]) -> str:
    # Typer joins lines of a paragraph, so each example is a paragraph of its own.
    return "\n\n".join(("[bold]Examples[/]", *(f"  {example}" for example in examples)))


_add(
    quantize,
    _MAIN,
    "quantry quantize model.onnx --data images/ --pixel-scale 1/255 --target vitisai",
    "quantry quantize model.onnx --data images/ --recipe mine.yaml -o out.onnx --report report.html",
)
_add(
    search,
    _MAIN,
    "quantry search model.onnx --data images/ --labels labels.csv --tolerance 1% --budget 30min",
    "quantry search search.yaml --n-trials 50",
)
_add(
    evaluate,
    _MAIN,
    "quantry evaluate model.int8.onnx --data images/ --labels labels.csv --metric top1",
    "quantry evaluate model.int8.onnx --float model.onnx --data images/ --metric sqnr --max-drop 3",
)
_add(
    diagnose,
    _MAIN,
    "quantry diagnose model.onnx --data images/ --pixel-scale 1/255 --recipe XINT8",
    "quantry diagnose model.onnx --data images/ --recipe model.int8.onnx --fix -o model.fixed.onnx",
    "quantry diagnose model.onnx --data images/ --pixel-scale 1/255 --calibration --evaluation-data photos/",
    "quantry diagnose model.onnx other.int8.onnx --data images/ --target qnn-htp",
)
_add(report, _MAIN, "quantry report quantry_search", "quantry report first_search second_search -o both.html")
_add(serve, _MAIN, "quantry serve quantry_search", "quantry serve quantry_search --host 0.0.0.0 --port 8000")
_add(demo, _MAIN, "quantry demo", "quantry demo --target cpu")
_add(nodes, _MODELS, "quantry nodes model.onnx --preset XINT8 --float")
_add(convert, _MODELS, "quantry convert model.int8.onnx --to qdq -o model.qdq.onnx")
_add(check, _MODELS, "quantry check model.int8.onnx", "quantry check model.int8.onnx --json")
_add(compare, _MODELS, "quantry compare model.onnx model.int8.onnx --data images/ --latency 50")
_add(placement, _MODELS, "quantry placement model.int8.onnx --target ort-cpu --json")
_add(targets, _MODELS, "quantry targets", "quantry targets qnn-htp")
_add(presets, _RECIPES, "quantry presets", "quantry presets XINT8 > mine.yaml")
_add_group(
    "recipe",
    _RECIPES,
    "Print, compare and validate recipes.",
    {
        recipe_commands.show: "quantry recipe show recommended-npu",
        recipe_commands.diff: "quantry recipe diff XINT8 recommended-npu",
        recipe_commands.validate: "quantry recipe validate mine.yaml",
    },
)
_add(schema, _RECIPES, "quantry schema recipe > recipe.schema.json", "quantry schema quantize --output")
_add_group(
    "cache",
    _HOUSE,
    "Look after the stored results.",
    {
        cache_commands.size: "quantry cache size",
        cache_commands.prune: "quantry cache prune --to 2GB",
        cache_commands.clear: "quantry cache clear",
        cache_commands.verify: "quantry cache verify",
    },
)
_add(doctor, _HOUSE, "quantry doctor", "quantry doctor --json")
# Everything after the script's name belongs to the script.
_add(
    compat,
    _HOUSE,
    "quantry compat quantize_resnet.py --model resnet.onnx",
    "quantry compat --scan quantize_resnet.py",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the result.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print log messages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    if version:
        typer.echo(quantry.__version__)
        raise typer.Exit
    set_output(quiet=quiet, verbose=verbose, as_json=as_json)


def main() -> None:
    """Run the command line. A user's mistake prints one line instead of a traceback; see docs/exit-codes.md."""
    warnings.showwarning = lambda message, *_: current_output().warn(str(message))
    with ended_by_interrupt():
        try:
            code = app(standalone_mode=False)
            if code == ExitCode.INTERRUPTED:
                report_interrupt(sys.argv[1:])
        except OSError as error:
            code = _after_os_error(error)
        except Exception as error:
            code = report_error(error, sys.argv[1:])
    sys.exit(code or ExitCode.GOOD)


def _after_os_error(error: OSError) -> int:
    if error.errno != errno.EPIPE:
        return report_error(error, sys.argv[1:])
    # The reader has seen enough, as in `quantry nodes model.onnx | head`. What is still buffered goes nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.GOOD
