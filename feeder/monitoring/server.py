"""The HTTP server of the metrics: one thread with one event loop, whatever connects.

    /metrics    all metrics of the latest report; with the token if there is one
    /healthz    200 while the daemon is healthy, else 503 with the reason
    /readyz     200 while it is ready, else 503 with the reason
    /           what is here

*Healthy* means that a restart of the daemon would not help: its supervisor makes reports, and it
keeps its own deadlines for node processes. It replaces a node process that hangs, spares one that
waits for storage or a CPU, and gives a successor time to start; a restart of the whole daemon would
only end the others as well. *Ready* means that all node processes serve.

Only GET and HEAD, one request a connection. A client has DEADLINE_S to send its request and as long
to read the reply. There are CONNECTIONS_MAX connections at a time; one more closes the one that has
been open longest without a whole request. ACCEPTS_A_S are accepted a second, the others wait in the
listener's backlog. So neither idle nor slow clients keep a scraper out or take much of a core, and
nothing blocks the daemon's other threads: replies come from a report that nobody changes.

Source of the syntax of requests: RFC 9112 (HTTP/1.1), sections 3 and 5.
"""

import asyncio
import contextlib
import hmac
import http
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError, ResourceError
from feeder.metrics.report import HostReport
from feeder.monitoring.exposition import Exposition
from feeder.process.regular_file import read_private
from feeder.process.stop_signals import stop_signals_blocked

HEAD_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
DEADLINE_S: Final = 5.0
STARTING: Final = "starting: there is nothing to serve yet"
ACCEPTS_A_S: Final = 200.0

REPORT_MAX_S: Final = 5.0
"""The supervisor makes a report every second."""
STATES_MAX_S: Final[Mapping[str, float]] = {
    "starting": 150.0,
    "restarting": 150.0,
    "silent": 45.0,
    "hung": 45.0,
}
"""How long a node process may be in each state; in others for any time. The supervisor gives one
120 s to start, after a backoff of 10 s at most, and ends a silent one after 30 s at most."""

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0\n]*?)[ \t]*")
_SHORTAGE_PAUSE_S: Final = 1.0
_BACKLOG: Final = 128
_END_DEADLINE_S: Final = 2.0
_TOKEN_FILE_BYTES_MAX: Final = 4096
_TOKEN_CHARS_MIN: Final = 16
_TEXT: Final = "text/plain; charset=utf-8"
_INDEX: Final = b"""<!doctype html><title>Feeder</title><h1>Feeder</h1>
<ul><li><a href="/metrics">/metrics</a>: for Prometheus
<li><a href="/healthz">/healthz</a>: whether the daemon works
<li><a href="/readyz">/readyz</a>: whether it serves batches</ul>
"""

_log = logging.getLogger(__name__)


def parse_head(head: bytes) -> tuple[str, str, dict[bytes, bytes]] | None:
    """Method, path without a query, and fields by lower-case name; None if malformed."""
    line, *lines = head.split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(line)
    fields = [match for match in map(_FIELD.fullmatch, lines) if match is not None]
    if start is None or len(fields) < len(lines):
        return None
    path = start[2].partition(b"?")[0]
    return start[1].decode(), path.decode(), {field[1].lower(): field[2] for field in fields}


def find_trouble(report: HostReport | str, now_s: float, *, must_serve: bool) -> str:
    """Why the daemon is not healthy or, if it ``must_serve``, not ready, in a line; "" if it is.

    A daemon that has no node processes yet has what it does instead, such as packing.
    """
    if isinstance(report, str):
        return report if must_serve else ""
    for node in report.nodes if must_serve else ():
        if node.state == "draining":
            return "draining"
        if node.state != "ready":
            return f"node process {node.number} is {node.state}"
    late_s = now_s - report.clock_s
    if late_s > REPORT_MAX_S:
        return f"the supervisor has made no report for {late_s:.0f} s"
    for node in report.nodes:
        age_s = now_s - node.since_s
        if age_s > STATES_MAX_S.get(node.state, float("inf")):
            return f"node process {node.number} has been {node.state} for {age_s:.0f} s"
    return ""


def read_token(path: Path) -> bytes:
    """The first line of a file that others cannot read.

    ConfigError where it cannot be read, is open to others or has no token.
    """
    what = "the metrics token"
    try:
        token = read_private(path, _TOKEN_FILE_BYTES_MAX, what).partition(b"\n")[0].strip()
    except OSError as error:
        problem = f" cannot be read: {error.strerror}"
    else:
        if len(token) >= _TOKEN_CHARS_MIN and token.isascii() and b" " not in token:
            return token
        problem = (
            f": its first line is not {_TOKEN_CHARS_MIN} or more ASCII characters without spaces"
        )
    raise ConfigError(
        f"{what} {path}{problem}; make one with (umask 077; openssl rand -hex 32 > {path})"
    )


def is_authorized(authorization: bytes, path: Path) -> bool:
    """Whether an Authorization header has the token of a file, which is read for each scrape, as
    it may change."""
    try:
        token = read_token(path)
    except ConfigError as error:
        _log.warning("%s; scrapes are refused until then", error)
        return False
    scheme, _, credentials = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(credentials.strip(), token)


class MetricsServer:
    """Serves from its own thread between ``start`` and ``close``."""

    def __init__(
        self,
        host: str,
        port: int,
        health: Callable[[], HostReport | str] = lambda: STARTING,
        token: Path | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Bind a numeric address; ResourceError if that is impossible.

        ``health`` is called for each reply, from another thread, and may be set later; ``token`` is
        the token's file, ConfigError if it has none.
        """
        if token is not None:
            read_token(token)
        self.health = health
        self.connections: dict[asyncio.Task[None], bool] = {}
        """Whether each has sent its whole request; the oldest one first."""
        self._deadline_s = deadline_s
        self._token = token
        self._exposition = Exposition()
        self._socket = _bind(host, port)
        self.address = _join(*self._socket.getsockname()[:2])
        """As bound, with the port that the system chose."""
        self._is_closed = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._accept()), name="metrics", daemon=True
        )

    def start(self) -> None:
        """Start the thread; until then clients wait in the backlog."""
        with stop_signals_blocked():  # the thread inherits the mask: signals are the main thread's
            self._thread.start()

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends the wait for a connection
        if self._thread.is_alive():
            self._thread.join(_END_DEADLINE_S)
        self._socket.close()

    async def _accept(self) -> None:
        """Accept connections until the server is closed."""
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # no descriptors, or closed
                if not self._is_closed:
                    _log.warning("metrics: a connection cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(_SHORTAGE_PAUSE_S)
                continue
            if len(self.connections) >= CONNECTIONS_MAX:
                oldest = min(self.connections, key=lambda task: self.connections[task])
                del self.connections[oldest]
                oldest.cancel()
            task = loop.create_task(self._serve(client))
            self.connections[task] = False
            task.add_done_callback(lambda task: self.connections.pop(task, None))
            # Meanwhile a request that has arrived is read, before later connections can close its
            # own.
            await asyncio.sleep(1 / ACCEPTS_A_S)

    async def _serve(self, client: socket.socket) -> None:
        """Read a request, write the reply, and close."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        head = b""
        with client, contextlib.suppress(OSError):
            async with asyncio.timeout(self._deadline_s):
                while _END not in head and len(head) <= HEAD_BYTES_MAX:
                    data = await loop.sock_recv(client, HEAD_BYTES_MAX)
                    if not data:
                        return
                    head += data
            self.connections[task] = True
            head, end, _ = head.partition(_END)
            if end and len(head) <= HEAD_BYTES_MAX:
                reply = self._reply(head)
            else:
                reply = _compose(431, f"at most {HEAD_BYTES_MAX} bytes of header\n".encode())
            async with asyncio.timeout(self._deadline_s):
                await loop.sock_sendall(client, reply)

    def _reply(self, head: bytes) -> bytes:
        request = parse_head(head)
        if request is None:
            return _compose(400, b"malformed request\n")
        method, path, fields = request
        if method not in ("GET", "HEAD"):
            return _compose(405, b"only GET and HEAD\n", extra="Allow: GET, HEAD\r\n")
        reply = self._page(path, fields)
        return reply if method == "GET" else reply[: reply.index(_END) + len(_END)]

    def _page(self, path: str, fields: dict[bytes, bytes]) -> bytes:
        match path:
            case "/":
                return _compose(200, _INDEX, "text/html; charset=utf-8")
            case "/healthz":
                return self._state("ok", must_serve=False)
            case "/readyz":
                return self._state("ready", must_serve=True)
            case "/metrics":
                authorization = fields.get(b"authorization", b"")
                if self._token is not None and not is_authorized(authorization, self._token):
                    extra = 'WWW-Authenticate: Bearer realm="feeder metrics"\r\n'
                    body = b"send the token: Authorization: Bearer ...\n"
                    return _compose(401, body, extra=extra)
                health = self.health()
                report = None if isinstance(health, str) else health
                accept = fields.get(b"accept", b"").decode("latin-1")
                return _compose(200, *self._exposition.render(report, accept))
        return _compose(404, b"not found; try /metrics, /healthz or /readyz\n")

    def _state(self, well: str, *, must_serve: bool) -> bytes:
        trouble = find_trouble(self.health(), time.monotonic(), must_serve=must_serve)
        return _compose(503 if trouble else 200, f"{trouble or well}\n".encode())


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ResourceError(
            f"the metrics cannot listen on {_join(host, port)}: {os.strerror(error.errno or 0)}; "
            "choose another address with --metrics, or end what uses this one"
        ) from None
    listener.setblocking(False)
    return listener


def _compose(status: int, body: bytes, kind: str = _TEXT, extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + body
