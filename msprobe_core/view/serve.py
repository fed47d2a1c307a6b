"""Serve a page and its graphs to a browser on this machine; graphs are sent when they are viewed.

No other program gets access: the server listens on the loopback interface only; each request needs the random token of
this server, compared in constant time; and its host must be this one, so that a foreign page whose name resolves to
this machine (DNS rebinding) is refused.
"""

from __future__ import annotations

import gzip
import hmac
import logging
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from msprobe_core.errors import StoreError
from msprobe_core.view.data import ViewData
from msprobe_core.view.page_file import document, served_page
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends_live import LiveMonitor

_logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_TOKEN_BYTES = 32
_UNIT = re.compile(r"/data/unit/([0-9]{1,9})", re.ASCII)

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline' blob:; worker-src blob:; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The page needs nothing from elsewhere; even if a name in a dump became code, it could not send anything away."""

_MONITOR = "/data/monitor/"
_HTML, _JSON = "text/html; charset=utf-8", "application/json"


class PageServer(ThreadingHTTPServer):
    """Serves one page until it is shut down."""

    daemon_threads = True

    def __init__(self, data: ViewData, graphs: StoredGraphs, port: int = 0, live: LiveMonitor | None = None) -> None:
        """Begin to listen.

        Args:
            data: The data, with null graphs.
            graphs: Holds the graphs; must stay open as long as the server.
            port: 0 for any free port.
            live: The training whose latest state is served instead of ``data``; ``None`` if they do not change.

        Raises:
            StoreError: the port is taken.
        """
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise StoreError(
                f"nothing can be served at {HOST}:{port} ({error.strerror or error}); give another --port"
            ) from error
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.graphs = graphs
        query = f"?token={self.token}"
        source = {"index": f"/data/index{query}", "unit": f"/data/unit/{{unit}}{query}"}
        self.live = live
        if live is not None:
            source["monitor"] = f"/data/monitor/{{part}}{query}"
        self.page = served_page(source)
        self.index = b"" if live is not None else gzip.compress(b"".join(document(data, graphs, ())), mtime=0)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the library's signature
        """Print nothing about failed requests: any user of this machine could write to the owner's terminal."""
        _logger.debug("a request of %s failed", client_address, exc_info=True)  # noqa: LOG014  # called in a handler

    @property
    def url(self) -> str:
        """Address of the page, with the token that gives access to the data."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "msprobe"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds until a silent connection is closed

    def do_GET(self) -> None:  # the library's name
        """Answer with the page, the index, or a graph."""
        try:
            address = urlsplit(self.path)
        except ValueError:  # an incomplete IPv6 address
            address = urlsplit("")
        if not self._is_for_us(address.query):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"give the address that msprobe view has printed\n")
        elif address.path == "/":
            self._answer(HTTPStatus.OK, _HTML, self.server.page)
        elif address.path == "/data/index" and self.server.live is not None:
            self._answer_latest(self.server.live)
        elif address.path == "/data/index":
            self._answer(HTTPStatus.OK, _JSON, self.server.index, is_packed=True)
        elif address.path.startswith(_MONITOR) and self.server.live is not None:
            part = self.server.live.part(address.path.removeprefix(_MONITOR))
            if part is None:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such part of the training\n")
            else:
                self._answer(HTTPStatus.OK, _JSON, part, is_packed=True)
        else:
            found = _UNIT.fullmatch(address.path)
            graph = None if found is None else self.server.graphs.compressed(int(found[1]))
            if graph is None:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such unit\n")
            else:
                self._answer(HTTPStatus.OK, _JSON, graph, is_packed=True)

    def _answer_latest(self, live: LiveMonitor) -> None:
        """Answer with a training's latest state, unless the page has it."""
        version, content = live.latest
        tag = f'"{version}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, _JSON, b"", tag=tag)
        else:
            self._answer(HTTPStatus.OK, _JSON, content, is_packed=True, tag=tag)

    def _is_for_us(self, query: str) -> bool:
        given = parse_qs(query).get("token", [""])[0]
        has_token = hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode())
        return has_token and self.headers.get("Host", "") in self.server.hosts

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, *, is_packed: bool = False, tag: str = "") -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        try:
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):  # the browser has closed the connection
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
        """Log nothing: requests contain the token."""
