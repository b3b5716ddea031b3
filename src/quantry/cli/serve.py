"""``quantry serve``: the page of a search that grows while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quantry.cli.frame import current_output
from quantry.errors import DataError
from quantry.recipe.json_result import JsonResult

_SECONDS_AFTER = 1.0
"""How long the page of `search --live` is served after the end, so that an open browser gets the last state."""


@dataclass(frozen=True)
class ServeResult(JsonResult):
    """The page of a search.

    Attributes:
        address: Where the page is.
    """

    address: str


def serve(
    folder: Annotated[Path, typer.Argument(help="Output folder of a search, running or finished.")],
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need the token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 8765,
    token: Annotated[str | None, typer.Option(help="Secret of the address; default: a random one.")] = None,
) -> None:
    """Serve the page of a search: it grows while the search runs, and has buttons to pause, resume and stop it."""
    if not folder.is_dir():
        raise DataError(f"the output folder of a search must exist, found nothing; at {folder}")
    from quantry.report import LiveServer

    server = LiveServer(folder, host, port, token)
    out = current_output()
    out.answer.print(server.address, highlight=False, markup=False, soft_wrap=True)
    out.console.print("Open it in a browser; Ctrl-C ends the server, not the search.")
    out.result_before_work(ServeResult(server.address))
    try:
        server.serve()
    finally:
        server.closed.set()


@contextmanager
def live_page(folder: Path, *, enabled: bool) -> Iterator[None]:
    """Serve the page of a search while the body of this context runs it.

    Args:
        folder: The output directory.
        enabled: False serves nothing.
    """
    if not enabled:
        yield
        return
    import time

    from quantry.report import LiveServer

    server = LiveServer(folder)
    server.start()
    Console(stderr=True).print(f"live page: {server.address}", highlight=False, markup=False, soft_wrap=True)
    try:
        yield
        time.sleep(_SECONDS_AFTER)
    finally:
        server.close()
