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
from collections.abc import Callable, Mapping
from typing import Any, Final

from feeder.errors import ResourceError
from feeder.monitoring.access import Address, TokenFile
from feeder.monitoring.exposition import Exposition
from feeder.monitoring.health import HealthState, not_ready_reason, unhealthy_reason
from feeder.process.stop_signals import stop_signals_blocked

HEAD_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
DEADLINE_S: Final = 5.0
STARTING: Final = "starting: there is nothing to serve yet"
ACCEPTS_A_S: Final = 200.0
ACCEPTS_BURST: Final = 256.0
ACCEPTS_A_TURN: Final = 16
"""A turn of the event loop, which reads from a connection three turns after accepting it. A request
that has arrived is read before CONNECTIONS_MAX later connections can close its own."""

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_PAUSE_S: Final = 0.1
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
    line, *fields = head.split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(line)
    if start is None:
        return None
    values: dict[bytes, bytes] = {}
    for field in fields:
        match = _FIELD.fullmatch(field)
        if match is None or b"\n" in field or b"\0" in field:
            return None
        values[match[1].lower()] = match[2]
    return start[1].decode("ascii"), start[2].partition(b"?")[0].decode("ascii"), values


class MetricsServer:
    """Serves from its own thread between ``start`` and ``close``."""

    def __init__(
        self,
        address: Address,
        health: Callable[[], HealthState | str] = lambda: STARTING,
        token: TokenFile | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Bind the address; ResourceError if that is impossible.

        ``health`` is called for each reply, from another thread; it may be set later. Before there
        are node processes it returns what the daemon does instead, in a line.
        """
        self.deadline_s = deadline_s
        self.health = health
        self._token = token
        self._exposition = Exposition()
        self.connections: dict[_Connection, None] = {}
        """The oldest one first."""
        self._socket = _bind(address)
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        """As bound, with the port that the system chose."""
        self._accepts = ACCEPTS_BURST
        self._accepts_s = 0.0
        self._opening: set[asyncio.Task[object]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the thread; until then clients wait in the backlog."""
        with stop_signals_blocked():  # the thread inherits the mask: signals are the main thread's
            self._thread.start()

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_DEADLINE_S)
        if not self._thread.is_alive() and not self._loop.is_closed():
            self._loop.close()
        self._socket.close()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(_log_trouble)
        self._listen()
        try:
            loop.run_forever()
        finally:
            loop.remove_reader(self._socket)
            loop.run_until_complete(self._end())
            loop.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept some of those that wait; pause once the rate allows no more."""
        now_s = self._loop.time()
        earned = (now_s - self._accepts_s) * ACCEPTS_A_S
        self._accepts = min(ACCEPTS_BURST, self._accepts + earned)
        self._accepts_s = now_s
        for _ in range(ACCEPTS_A_TURN):
            if self._accepts < 1:
                break
            try:
                client, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors
                _log.warning("metrics: a connection cannot be accepted: %s", error.strerror)
                self._accepts = -ACCEPTS_A_S
                break
            self._accepts -= 1
            client.setblocking(False)
            task = self._loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            return  # and go on in the next turn
        self._loop.remove_reader(self._socket)
        self._loop.call_later(_PAUSE_S, self._listen)

    async def _end(self) -> None:
        """Have what is being opened and all transports close."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _open(self, client: socket.socket) -> None:
        await self._loop.connect_accepted_socket(lambda: _Connection(self), client)

    def opened(self, connection: "_Connection") -> None:
        """Take a new connection, and close another one if there are too many."""
        if len(self.connections) >= CONNECTIONS_MAX:
            waiting = (other for other in self.connections if not other.is_answered)
            oldest = next(waiting, next(iter(self.connections)))
            del self.connections[oldest]
            oldest.abort()
        self.connections[connection] = None

    def reply(self, head: bytes) -> bytes:
        """The whole reply to a request, given its head."""
        request = parse_head(head)
        if request is None:
            return _compose(400, b"malformed request\n")
        method, path, fields = request
        if method not in ("GET", "HEAD"):
            return _compose(405, b"only GET and HEAD\n", extra="Allow: GET, HEAD\r\n")
        return _compose(*self._page(path, fields), has_body=method == "GET")

    def _page(self, path: str, fields: Mapping[bytes, bytes]) -> tuple[int, bytes, str, str]:
        """The status, body, type and additional header fields of a page."""
        match path:
            case "/":
                return 200, _INDEX, "text/html; charset=utf-8", ""
            case "/healthz":
                return _state("ok", unhealthy_reason(self.health(), time.monotonic()))
            case "/readyz":
                return _state("ready", not_ready_reason(self.health(), time.monotonic()))
            case "/metrics":
                authorization = fields.get(b"authorization", b"")
                if self._token is not None and not self._token.accepts(authorization):
                    extra = 'WWW-Authenticate: Bearer realm="feeder metrics"\r\n'
                    return 401, b"send the token: Authorization: Bearer ...\n", _TEXT, extra
                health = self.health()
                report = None if isinstance(health, str) else health.report
                accept = fields.get(b"accept", b"").decode("latin-1")
                return 200, *self._exposition.render(report, accept), ""
        return 404, b"not found; try /metrics, /healthz or /readyz\n", _TEXT, ""


class _Connection(asyncio.Protocol):
    """A client's connection: reads a head, writes a reply, and closes."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_answered = False
        """Its request was whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.opened(self)
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        searched = max(0, len(self._head) - len(_END) + 1)
        self._head += data
        end = self._head.find(_END, searched)
        if end < 0 and len(self._head) <= HEAD_BYTES_MAX:
            return
        if 0 <= end <= HEAD_BYTES_MAX:
            reply = self._server.reply(bytes(self._head[:end]))
        else:
            reply = _compose(431, f"at most {HEAD_BYTES_MAX} bytes of header\n".encode())
        self._head.clear()
        self.is_answered = True
        self._restart_timer()
        if self._transport is not None:
            self._transport.pause_reading()
            self._transport.write(reply)
            self._transport.close()  # once the reply is written

    def eof_received(self) -> bool:
        return False  # close, unless the reply is still being written

    def connection_lost(self, _: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close at once, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._server.deadline_s, self.abort)


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


def _state(well: str, trouble: str) -> tuple[int, bytes, str, str]:
    return 503 if trouble else 200, f"{trouble or well}\n".encode(), _TEXT, ""


def _compose(
    status: int, body: bytes, kind: str = _TEXT, extra: str = "", *, has_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")


def _log_trouble(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.warning("metrics: %s%s", context.get("message"), f": {error}" if error else "")
