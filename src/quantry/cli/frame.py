"""What every command shares: ``--json``, ``-q`` and ``-v`` anywhere on the line, and exit codes.

A command prints through `current_output()` and ends with ``output.result(...)``. docs/extend/command.md shows how.
"""

import contextlib
import functools
import inspect
import json
import logging
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape

import quantry
from quantry.cli.option_parameters import options_of
from quantry.errors import InternalError, OptionError, QuantryError, RecipeError, UserError
from quantry.notes import Note
from quantry.recipe.json_result import plain
from quantry.runtime import progress

JSON_VERSION = 1
"""Version of the JSON of all commands; it rises when a key is removed or changes its meaning, not when one is added."""

_UNLIMITED = 10_000


class ExitCode(IntEnum):
    """Exit codes of all commands; docs/exit-codes.md explains them."""

    GOOD = 0
    FAILED = 1
    USAGE = 2
    NOT_GOOD_ENOUGH = 3
    INTERRUPTED = 130


@dataclass
class Output:
    """Where a command prints.

    Attributes:
        command: The command, such as ``quantize`` or ``recipe show``.
        json: Print one JSON object on standard output and nothing else.
        quiet: Print errors and the result only.
        verbose: Also print log messages, and the traceback of an error.
        warnings: What `warn` was called with.
        stream: Where the JSON goes.
        has_json: Whether the JSON has been printed.
        explains_interrupt: Whether the command itself says what an interrupt leaves.
    """

    command: str = ""
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    warnings: list[str | Note] = field(default_factory=list)
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    has_json: bool = False
    explains_interrupt: bool = False
    _result: tuple[Any, int] | None = None

    @property
    def console(self) -> Console:
        """For texts that explain a result; prints nothing with ``--json`` or ``--quiet``."""
        return Console(quiet=self.json or self.quiet)

    @property
    def answer(self) -> Console:
        """For the result itself; prints nothing with ``--json``. Tables are not wrapped in a pipe or a file."""
        return Console(quiet=self.json, width=None if sys.stdout.isatty() else _UNLIMITED)

    def item(self, label: str, text: str, *, is_answer: bool = False) -> None:
        """Print a text after a label; in a terminal its lines start below each other, elsewhere it is one line.

        Args:
            label: What comes first, with its indentation.
            text: Plain text.
            is_answer: Whether it is part of the result, which ``--quiet`` prints too.
        """
        console = self.answer if is_answer else self.console
        width = console.width if sys.stdout.isatty() else _UNLIMITED
        lines = textwrap.wrap(
            text, width, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
        )
        for line in lines or [label.rstrip()]:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    def warn(self, warning: str | Note) -> None:
        """Print a warning on standard error unless ``--quiet`` is given; JSON lists it in either case."""
        self.warnings.append(warning)
        if not self.quiet:
            Console(stderr=True).print(f"[bold yellow]warning:[/] {escape(str(warning))}", soft_wrap=True)

    def result(self, data: Any, exit_code: int = ExitCode.GOOD) -> None:
        """Set what the command returns; call it once, last.

        Args:
            data: The result for ``--json``, a `JsonResult`.
            exit_code: The exit code.
        """
        self._result = (data, int(exit_code))

    def result_before_work(self, data: Any) -> None:
        """Set what a command returns that runs until it is stopped; JSON is printed now, because its end is too late.

        Args:
            data: The result for ``--json``, a `JsonResult`.
        """
        self.result(data)
        self.finish()

    def finish(self) -> int:
        """Print the JSON if it was asked for and not printed yet, and return the exit code."""
        if self._result is None:
            raise InternalError(f"a command must call Output.result, got none; in {self.command}")
        data, code = self._result
        self.print_json(code, {"result": data})
        return code

    def print_json(self, code: int, content: Mapping[str, Any]) -> None:
        """Print the JSON if it was asked for, once.

        Args:
            code: The exit code.
            content: ``result`` or ``error``.
        """
        if not self.json or self.has_json:
            return
        self.has_json = True
        envelope = {
            "schema": f"quantry/{self.command}",
            "version": JSON_VERSION,
            "quantry": quantry.__version__,
            "exit_code": int(code),
            "warnings": [str(warning) for warning in self.warnings],
            **content,
        }
        self.stream.write(json.dumps(plain(envelope), indent=2) + "\n")
        self.stream.flush()


_outputs: list[Output] = [Output()]
# The output of the command that ran last, for errors that end it.
_latest: list[Output] = []


def current_output() -> Output:
    """Return the output of the running command."""
    return _outputs[-1]


_QUIET = typer.Option("--quiet", "-q", help="Print only errors and the result.", rich_help_panel="Output")
_VERBOSE = typer.Option("--verbose", "-v", help="Also print log messages.", rich_help_panel="Output")
_JSON = typer.Option("--json", help="Print the result as JSON; see docs/reference/json.md.", rich_help_panel="Output")
_OPTIONS = {
    "output_quiet": Annotated[bool, _QUIET],
    "output_verbose": Annotated[bool, _VERBOSE],
    "output_json": Annotated[bool, _JSON],
}


def set_output(*, quiet: bool, verbose: bool, as_json: bool) -> None:
    """Set the options that were given before the command's name."""
    _outputs[:] = [Output(quiet=quiet, verbose=verbose, json=as_json)]
    _latest.clear()


def framed(command: Callable[..., None], name: str) -> Callable[..., None]:
    """Return a command with the options ``--json``, ``--quiet`` and ``--verbose``.

    Args:
        command: The function of the command, which calls ``current_output().result(...)``.
        name: Its name on the command line.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = {
        parameter.name: group for parameter in parameters if (group := options_of(parameter.annotation)) is not None
    }

    @functools.wraps(command)
    def run(*, output_quiet: bool, output_verbose: bool, output_json: bool, **values: Any) -> None:
        outer = _outputs[0]
        output = replace(
            outer,
            command=name,
            quiet=outer.quiet or output_quiet,
            verbose=outer.verbose or output_verbose,
            json=outer.json or output_json,
            warnings=[],
            stream=sys.stdout,
        )
        _latest[:] = [output]
        values |= {parameter: group.taken_from(values) for parameter, group in groups.items()}
        # With --json standard output has the JSON alone, whatever a library or a user's script prints.
        with _as_current(output), contextlib.redirect_stdout(sys.stderr if output.json else sys.stdout):
            try:
                command(**values)
            except OptionError as error:
                if error.option not in flags:
                    raise
                raise RecipeError(f"{flags[error.option]} {error.problem}") from error
        code = output.finish()
        if code != ExitCode.GOOD:
            raise typer.Exit(code)

    options: list[inspect.Parameter] = []
    for parameter in parameters:
        options += groups[parameter.name].parameters() if parameter.name in groups else [parameter]
    flags = {option.name: f"--{option.name.replace('_', '-')}" for option in options}
    # typer calls with keywords only; this kind also allows an argument after options that have defaults.
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [parameter.replace(kind=kind) for parameter in options]
    options += [inspect.Parameter(option, kind, default=False, annotation=hint) for option, hint in _OPTIONS.items()]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    return run


@contextlib.contextmanager
def _as_current(output: Output) -> Iterator[None]:
    logging.basicConfig(level=logging.DEBUG if output.verbose else logging.WARNING, format="%(levelname)s %(message)s")
    _outputs.append(output)
    progress.set_enabled(not output.quiet)
    progress.set_lines(not output.quiet)
    try:
        yield
    finally:
        progress.set_enabled(True)
        progress.set_lines(False)
        _outputs[1:] = []


def report_error(error: Exception, arguments: list[str]) -> int:
    """Print an error, and return the exit code.

    Args:
        error: What a command raised.
        arguments: The command line; with ``--json`` the error is also printed as JSON.
    """
    console = Console(stderr=True)
    if isinstance(error, UserError):
        code = ExitCode.USAGE
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    elif hasattr(error, "format_message"):  # an error of the command line's parser
        from typer import rich_utils

        code = ExitCode.USAGE
        rich_utils.rich_format_error(error)  # type: ignore[arg-type]
    else:
        code = ExitCode.FAILED
        is_ours = isinstance(error, QuantryError)
        text = str(error) if is_ours else f"{type(error).__name__}: {error}"
        console.print(f"[bold red]failed:[/] {escape(text)}", soft_wrap=True)
        console.print("Run again with --verbose for details. If your model is valid, please report this as a bug.")
    if _asked(arguments, "--verbose", "-v") and code == ExitCode.FAILED:
        traceback.print_exception(error)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    _failed_output(error, arguments).print_json(
        code, {"error": {"type": type(error).__name__, "message": message or type(error).__name__}}
    )
    return code


def report_interrupt(arguments: list[str]) -> int:
    """Say that the command was interrupted by Ctrl-C, and return the exit code.

    Args:
        arguments: The command line.
    """
    output = _failed_output(KeyboardInterrupt(), arguments)
    if not output.explains_interrupt:
        sys.stderr.write("interrupted\n")
    error = {"type": "KeyboardInterrupt", "message": "interrupted by the user"}
    output.print_json(ExitCode.INTERRUPTED, {"error": error})
    return ExitCode.INTERRUPTED


def _failed_output(error: BaseException, arguments: list[str]) -> Output:
    """Return the output of the command that failed, or one for a line that names no command to run."""
    if _latest:
        return _latest[0]
    # The parser knows which command it was parsing, such as "quantry recipe show".
    context = getattr(error, "ctx", None)
    parsed = "" if context is None else context.command_path.partition(" ")[2]
    first = next((argument for argument in arguments if not argument.startswith("-")), "")
    return Output(command=parsed or first, json=_asked(arguments, "--json"))


def _asked(arguments: list[str], *options: str) -> bool:
    return any(option in arguments for option in options)
