"""A web server for this machine only: it listens on loopback, and requests change nothing.

It rejects pages of other origins: requests must name this server as their host and origin. This also prevents
DNS rebinding, where a hostile name resolves to 127.0.0.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import LOOPBACK

_TIMEOUT: Final = 10.0  # s for a request to arrive
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """The content that is sent for a path."""

    kind: str  # its MIME type
    body: bytes


Routes = Mapping[str, Callable[[], Answer]]


class LoopbackServer:
    """Answers GET and HEAD on paths, in threads."""

    def __init__(self, routes: Routes, port: int = 0):
        """Open the port.

        Args:
            routes: what each path has.
            port: on loopback; 0 for one that is free.

        Raises:
            InputError: the port is in use or not allowed.
        """
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InputError(
                f"Port {port} cannot be used ({error.strerror}): choose another with --port."
            ) from None
        self._server.routes = routes

    @property
    def port(self) -> int:
        """The TCP port on which the server listens; the system chose it where none was asked for."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{LOOPBACK}:{self.port}/"

    def run(self) -> None:
        """Answer requests until `stop` is called from another thread."""
        self._server.serve_forever(poll_interval=0.2)

    def start(self) -> None:
        """Answer requests in a new thread."""
        threading.Thread(target=self.run, name="loopback", daemon=True).start()

    def stop(self) -> None:
        """Stop a running server, and close its port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    routes: Routes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a browser that closes a connection is normal."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "sfedhp", ""
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Suppress the log line that the base class prints for each request."""

    def _answer(self, *, with_body: bool) -> None:
        if not self._own():
            self._send(HTTPStatus.FORBIDDEN, Answer("text/plain", b""), with_body=False)
            return
        route = self.server.routes.get(urlsplit(self.path).path)
        if route is None:
            self._send(HTTPStatus.NOT_FOUND, Answer("text/plain", b"not found\n"), with_body=with_body)
            return
        self._send(HTTPStatus.OK, route(), with_body=with_body)

    def _own(self) -> bool:
        """Whether the request is meant for this server, and no other page sends it."""
        port = self.server.server_address[1]
        hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host") not in hosts:
            return False
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return False
        return self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

    def _send(self, status: HTTPStatus, answer: Answer, *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)
