"""Serves the page of a search while it runs: server-sent events tell the browser when there is something new.

Only the page, the events and the control of one search are served, never files of the folder. Every request must carry
the token that the page's address has, unless the server listens on a loopback address, where only requests that change
something need it. Requests under another host name are refused, so that no website can reach the server through the
user's browser.
"""

import json
import secrets
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from quantry.autosearch.control import request, requested
from quantry.errors import DataError, RecipeError, UserError
from quantry.files import read_regular
from quantry.report.html import asset
from quantry.report.write import render_folders

_POLL_SECONDS = 0.3
_HEARTBEAT_SECONDS = 10.0
_LONGEST_BODY = 1000


class LiveServer:
    """Serves one search.

    Args:
        folder: The output directory of the search, which may not have started yet.
        host: The address to listen on.
        port: The port; 0 takes any free one.
        token: The secret of the address; None makes one.

    Raises:
        RecipeError: The address cannot be used.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.folder = folder
        self.host = host
        self.token = token or secrets.token_urlsafe(16)
        self.is_local = is_loopback(host)
        self.closed = threading.Event()
        try:
            self._server = ThreadingHTTPServer((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise RecipeError(f"--host and --port must be a free address, got {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        self._server.live = self  # type: ignore[attr-defined]

    @property
    def port(self) -> int:
        """The port that is used."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + ("" if self.is_local else f"?token={self.token}")

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve, name="quantry-live", daemon=True).start()

    def serve(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop serving."""
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        """Return the page of the search, with the bar that controls it."""
        try:
            page = render_folders([self.folder])
        except DataError:
            page = _WAITING
        bar = (
            f'<div id=live role=region aria-label="Search" data-token={self.token}><div class=controls>'
            "<span id=live-state role=status>connecting</span>"
            "<button class=act id=live-pause type=button>Pause</button>"
            "<button class=act id=live-run type=button>Resume</button>"
            "<button class=act id=live-stop type=button>Stop</button></div></div>"
        )
        first = page.index("<header>")
        page = page[:first] + bar + page[first:]
        end = page.rindex("</body>")
        return f"{page[:end]}<script>{asset('live.js')}</script>{page[end:]}"

    def state(self) -> dict[str, Any]:
        """Return whether the search runs, and what was asked of it."""
        try:
            summary = json.loads(read_regular(self.folder / "search.json"))
            running = summary["stopped_by"] is None
        except (OSError, ValueError, KeyError):
            running = True  # it has not started yet
        return {"running": running, "action": requested(self.folder)}

    def version(self) -> int:
        """Return a number that changes when there is something new."""
        with suppress(OSError):
            return (self.folder / "search.json").stat().st_mtime_ns
        return 0


_WAITING = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>quantry</title><style>body{font:16px system-ui;margin:2em}</style><body data-page=waiting>"
    "<header><h1>Waiting for the search</h1><p>The page appears when the search has started.</p></header></body></html>"
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server_version = "quantry"

    @property
    def _live(self) -> LiveServer:
        return cast("LiveServer", self.server.live)  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        """Send the page or the events."""
        url = urlsplit(self.path)
        if not self._is_allowed(parse_qs(url.query).get("token", [""])[0], required=not self._live.is_local):
            return
        if url.path in ("/", "/page"):
            self._send(HTTPStatus.OK, self._live.page(), "text/html; charset=utf-8")
        elif url.path == "/events":
            self._send_events()
        else:
            self._send(HTTPStatus.NOT_FOUND, "nothing is served here")

    def do_POST(self) -> None:
        """Pause, resume or stop the search."""
        if not self._is_allowed(self.headers.get("X-Quantry-Token", ""), required=True):
            return
        try:
            length = int(self.headers.get("Content-Length", 0))
            if urlsplit(self.path).path != "/control" or not 0 < length <= _LONGEST_BODY:
                self._send(HTTPStatus.NOT_FOUND, "nothing is served here")
                return
            request(self._live.folder, json.loads(self.rfile.read(length))["action"])
        except (UserError, ValueError, KeyError, TypeError, OSError) as error:
            self._send(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._send(HTTPStatus.OK, "done")

    def _is_allowed(self, token: str, *, required: bool) -> bool:
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if self._live.is_local and not is_loopback(host):
            self._send(HTTPStatus.FORBIDDEN, "open the page as http://127.0.0.1")
            return False
        if required and not secrets.compare_digest(token.encode(), self._live.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, "the address must have the token that quantry printed")
            return False
        return True

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _send_events(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        last_version, last_state, spoke = self._live.version(), None, time.monotonic()
        with suppress(OSError):  # the browser has gone
            while not self._live.closed.is_set():
                version, state = self._live.version(), self._live.state()
                if version != last_version:
                    last_version = version
                    self._event("changed", {})
                    spoke = time.monotonic()
                if state != last_state:
                    last_state = state
                    self._event("state", state)
                    spoke = time.monotonic()
                if time.monotonic() - spoke > _HEARTBEAT_SECONDS:
                    # A comment: the connection shows that it is alive, and a browser that has gone is noticed.
                    self.wfile.write(b": alive\n\n")
                    spoke = time.monotonic()
                self._live.closed.wait(_POLL_SECONDS)

    def _event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Print nothing."""
