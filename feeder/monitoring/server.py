"""The HTTP server of the metrics: one thread with one event loop, whatever connects.

    /metrics    all metrics of the latest report; with the token if there is one
    /healthz    200 while the daemon is healthy, else 503 with the reason
    /readyz     200 while it is ready, else 503 with the reason
    /           what is here

Only GET and HEAD, one request a connection. A client has DEADLINE_S to send its request and as long
to read the reply. There are CONNECTIONS_MAX connections at a time; one more closes the one that has
been open longest without a whole request. ACCEPTS_A_S are accepted a second, the others wait in the
listener's backlog. So neither idle nor slow clients keep a scraper out or take much of a core, and
nothing blocks the daemon's other threads: replies come from a report that nobody changes.

Source of the syntax of requests: RFC 9112 (HTTP/1.1), sections 3 and 5.
"""

import asyncio
import contextlib
import http
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.metrics.report import HostReport
from feeder.monitoring.access import Address, is_authorized
from feeder.monitoring.exposition import Exposition
from feeder.monitoring.health import not_ready_reason, unhealthy_reason
from feeder.process.stop_signals import stop_signals_blocked

HEAD_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
DEADLINE_S: Final = 5.0
STARTING: Final = "starting: there is nothing to serve yet"
ACCEPTS_A_S: Final = 200.0

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0\n]*?)[ \t]*")
_SHORTAGE_PAUSE_S: Final = 1.0
_BACKLOG: Final = 128
_END_DEADLINE_S: Final = 2.0
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


class MetricsServer:
    """Serves from its own thread between ``start`` and ``close``."""

    def __init__(
        self,
        address: Address,
        health: Callable[[], HostReport | str] = lambda: STARTING,
        token: Path | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Bind the address; ResourceError if that is impossible.

        ``health`` is called for each reply, from another thread, and may be set later; ``token`` is
        the token's file.
        """
        self.health = health
        self.connections: dict[asyncio.Task[None], bool] = {}
        """Whether each has sent its whole request; the oldest one first."""
        self._deadline_s = deadline_s
        self._token = token
        self._exposition = Exposition()
        self._socket = _bind(address)
        self.address = Address(*self._socket.getsockname()[:2])
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
                return _state("ok", unhealthy_reason(self.health(), time.monotonic()))
            case "/readyz":
                return _state("ready", not_ready_reason(self.health(), time.monotonic()))
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


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (address.host, address.port), family=family, backlog=_BACKLOG
        )
    except OSError as error:
        raise ResourceError(
            f"the metrics cannot listen on {address}: {os.strerror(error.errno or 0)}; choose "
            "another address with --metrics, or end what uses this one"
        ) from None
    listener.setblocking(False)
    return listener


def _state(well: str, trouble: str) -> bytes:
    return _compose(503 if trouble else 200, f"{trouble or well}\n".encode())


def _compose(status: int, body: bytes, kind: str = _TEXT, extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + body
