"""An HTTP server as clients may find it: a proxy in front of one of this host that can misbehave.

    with StoreProxy(port, rate=400e6) as proxy:
        fault = proxy.strike("reset", "*/shard-*", times=3)
        …
        proxy.mend()

All connections together get ``rate`` bytes a second, and each request waits ``delay_s``. A fault
strikes requests whose path matches its pattern, until it has struck ``times`` of them or ``mend``
ends it. It forwards HTTP/1.1 with Content-Length, as object stores speak it for objects and small
lists, and nothing chunked. Large bodies pass through a pipe by splice(2) and are never copied to
this process: 0.1 s of CPU a GB.

    python -m bench.store_proxy PARENT_PID PORT RATE DELAY_S

is one in a process of its own. It prints the port where it listens, and replies to each line with
its CPU seconds.
"""

import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from fnmatch import fnmatchcase
from typing import Final, Literal, Self, get_args
from urllib.parse import unquote

from feeder.process.child import die_with_parent

BodyFault = Literal[
    "slow",  # the body at ``amount`` bytes a second
    "late",  # the answer after ``amount`` seconds
    "stall",  # half of the body, and the rest when the fault is mended
    "reset",  # half of the body, then RST
    "short",  # half of the body, then the end of the connection
    "short-length",  # half of the body, and a Content-Length that agrees
    "flip",  # a wrong byte in the middle
    "changed",  # another ETag; 412 for requests that insist on the right one
]
StatusFault = Literal[
    "error", "unavailable", "slow-down", "throttled", "expired", "denied", "no-bucket", "no-object"
]
Kind = BodyFault | StatusFault
KINDS: Final = (*get_args(BodyFault), *get_args(StatusFault))

STATUSES: Final[dict[str, tuple[int, str]]] = {
    "error": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
    "slow-down": (503, "SlowDown"),
    "throttled": (429, "TooManyRequests"),
    "expired": (400, "ExpiredToken"),  # 400, as S3 answers
    "denied": (403, "AccessDenied"),
    "no-bucket": (404, "NoSuchBucket"),
    "no-object": (404, "NoSuchKey"),
}
"""Status, and the code in S3's XML."""

CHANGED_ETAG: Final = '"of-another-object"'

_PIECE_BYTES: Final = 1 << 20  # at once, and less of slow bodies, so that these flow
_PIECE_S: Final = 0.02
_BURST_S: Final = 0.02  # tokens of so long are saved: a thread may wake up late
_HEAD_BYTES_MAX: Final = 1 << 16
_TIMEOUT_S: Final = 10.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN


@dataclass(slots=True, eq=False)
class Fault:
    kind: Kind
    paths: str = "*"
    """A pattern of paths, as the shell has them; "*" matches "/" too."""
    amount: float = 0.0
    times: float = float("inf")
    """Requests that it has yet to strike."""
    key: str = ""
    """The access key of those that it strikes; "": all."""
    mended: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, and what the client was sent for it so far."""

    method: str
    path: str
    asked: str
    """The Range header, "" without one."""
    struck: Kind | None
    status: int = 0
    body_bytes: int = 0


class StoreProxy:
    """Forwards HTTP connections to a port of the loopback address; a context manager."""

    def __init__(
        self, port: int, *, rate: float = 0.0, delay_s: float = 0.0, listen: int = 0
    ) -> None:
        """Listen on port ``listen``, 0: any that is free; a ``rate`` of 0 is unlimited."""
        self.upstream = port
        self.delay_s = delay_s
        self.exchanges: list[Exchange] = []
        self.bucket = TokenBucket(rate)
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", listen), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, name="store proxy", daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def strike(
        self,
        kind: Kind,
        paths: str = "*",
        *,
        amount: float = 0.0,
        times: float = float("inf"),
        key: str = "",
    ) -> Fault:
        """Add a fault; of several that match a request, the one that was added first strikes."""
        fault = Fault(kind, paths, amount, times, key)
        with self._lock:
            self._faults.append(fault)
        return fault

    def mend(self) -> None:
        """End all faults: what was stalled goes on."""
        with self._lock:
            for fault in self._faults:
                fault.mended.set()
            self._faults.clear()

    def struck(self) -> Counter[Kind]:
        """Count the requests that were struck, by kind."""
        return Counter(one.struck for one in list(self.exchanges) if one.struck is not None)

    def close(self) -> None:
        """Reset all connections and end the threads. Idempotent."""
        self._is_closed.set()
        self.mend()
        with self._lock:
            for end in [self._listener, *self._ends]:
                with suppress(OSError):  # not connected
                    end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def match(self, path: str, authorization: str) -> Fault | None:
        """Return the fault that strikes a request, and count it."""
        with self._lock:
            for fault in self._faults:
                is_signed = f"Credential={fault.key}/" in authorization or not fault.key
                if fault.times > 0 and is_signed and fnmatchcase(path, fault.paths):
                    fault.times -= 1
                    return fault
        return None

    def wait(self, seconds: float) -> None:
        """Sleep, until ``close`` at the longest; ConnectionError then."""
        if self._is_closed.wait(max(0.0, seconds)):
            raise ConnectionError

    def track(self, end: socket.socket, *, is_open: bool) -> None:
        with self._lock:
            (self._ends.add if is_open else self._ends.discard)(end)
            if is_open and self._is_closed.is_set():
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            with suppress(OSError):  # closed, or the client has gone
                end, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=[end], daemon=True)
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
                thread.start()

    def _serve(self, end: socket.socket) -> None:
        with end, ExitStack() as stack:
            self.track(end, is_open=True)
            stack.callback(self.track, end, is_open=False)
            link = _Link(self, end)
            stack.callback(link.close)
            try:
                while link.forward():
                    pass
            except OSError:  # either side has gone, or "reset"
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


class TokenBucket:
    """Bytes a second for all connections together."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.piece_bytes = min(_PIECE_BYTES, int(rate * _PIECE_S) or 1) if rate else _PIECE_BYTES
        self._lock = threading.Lock()
        self._free_s = 0.0  # when all that was taken will have been earned

    def take(self, count: int) -> float:
        """Take ``count`` tokens; return the seconds to wait until they are there."""
        if not self.rate:
            return 0.0
        with self._lock:
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s - _BURST_S) + count / self.rate
            return self._free_s - now_s


class _Stream:
    """A connection's incoming side: heads, and the bytes that follow them."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.ahead = b""  # received beyond the last head

    def read_head(self) -> tuple[list[str], dict[str, str]] | None:
        """Return the first line's words, and the headers by lower-case name; None at the end."""
        while b"\r\n\r\n" not in self.ahead:
            data = self.end.recv(_HEAD_BYTES_MAX)
            if not data or len(self.ahead) > _HEAD_BYTES_MAX:
                return None
            self.ahead += data
        head, _, self.ahead = self.ahead.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines)
        return first.split(" ", 2), {name.lower(): text.strip() for name, _, text in fields}

    def take_ahead(self, count: int) -> bytes:
        data, self.ahead = self.ahead[:count], self.ahead[count:]
        return data


class _Link:
    """One client's connection, and one of its own to the server, which is opened when needed."""

    def __init__(self, proxy: StoreProxy, end: socket.socket) -> None:
        self._proxy = proxy
        self._client = _Stream(end)
        self._server: _Stream | None = None
        self._pipe = os.pipe()
        with suppress(OSError):  # more than the user may have
            fcntl(self._pipe[1], F_SETPIPE_SZ, _PIECE_BYTES)

    def close(self) -> None:
        self._drop_server()
        for descriptor in self._pipe:
            os.close(descriptor)

    def forward(self) -> bool:
        """Forward one request and its answer; return whether another may follow."""
        request = self._client.read_head()
        if request is None:
            return False
        (method, target, _), headers = request
        path = unquote(target.partition("?")[0])
        fault = self._proxy.match(path, headers.get("authorization", ""))
        kind = fault.kind if fault is not None else None
        exchange = Exchange(method, path, headers.get("range", ""), kind)
        self._proxy.exchanges.append(exchange)
        body = self._read_request_body(int(headers.get("content-length", 0)))
        self._proxy.wait(self._proxy.delay_s + (fault.amount if fault and kind == "late" else 0))
        if kind == "changed" and headers.get("if-match", CHANGED_ETAG) != CHANGED_ETAG:
            self._refuse(exchange, 412, "PreconditionFailed")
        elif kind in STATUSES:
            self._refuse(exchange, *STATUSES[kind])
        else:
            line = f"{method} {target} HTTP/1.1"
            return self._answer(exchange, fault, self._ask(_encode_head(line, headers) + body))
        return True

    def _answer(
        self, exchange: Exchange, fault: Fault | None, answer: tuple[list[str], dict[str, str]]
    ) -> bool:
        (_, status, *_), headers = answer
        exchange.status = int(status)
        has_body = exchange.method != "HEAD" and exchange.status not in (204, 304)
        size = int(headers["content-length"]) if has_body else 0
        half = size // 2
        kind = exchange.struck
        if kind == "changed":
            headers["etag"] = CHANGED_ETAG
        if kind == "short-length" and has_body:
            headers["content-length"] = str(half)
        self._client.end.sendall(_encode_head(f"HTTP/1.1 {status} -", headers))
        buckets = [self._proxy.bucket]
        if fault is not None and kind == "slow":
            buckets.append(TokenBucket(fault.amount))
        if fault is None or kind in ("late", "slow", "changed"):
            self._send_body(exchange, size, buckets)
            return headers.get("connection", "").lower() != "close"
        self._send_body(exchange, half, buckets)
        if kind == "reset":
            raise ConnectionResetError
        if kind in ("short", "short-length"):
            self._drop_server()  # the rest of the body is in it
            return kind == "short-length"
        if kind == "stall":
            fault.mended.wait()
        elif size:  # "flip"
            self._send(exchange, bytes([self._read_byte() ^ 0x10]))
            half += 1
        self._send_body(exchange, size - half, buckets)
        return True

    def _ask(self, request: bytes) -> tuple[list[str], dict[str, str]]:
        """Send the request on; return the head of the answer. ConnectionError if none comes."""
        was_open = self._server is not None  # perhaps closed meanwhile, as it was idle
        while True:
            if self._server is None:
                end = socket.create_connection(("127.0.0.1", self._proxy.upstream))
                self._proxy.track(end, is_open=True)
                self._server = _Stream(end)
            with suppress(OSError):
                self._server.end.sendall(request)
                if (answer := self._server.read_head()) is not None:
                    return answer
            self._drop_server()
            if not was_open:
                raise ConnectionError
            was_open = False

    def _read_request_body(self, size: int) -> bytes:
        body = self._client.take_ahead(size)
        while len(body) < size:
            data = self._client.end.recv(min(_PIECE_BYTES, size - len(body)))
            if not data:
                raise ConnectionError
            body += data
        return body

    def _send_body(self, exchange: Exchange, size: int, buckets: Sequence[TokenBucket]) -> None:
        """Forward the next ``size`` bytes of the answer, at the rate of the slowest bucket."""
        assert self._server is not None
        piece = min(bucket.piece_bytes for bucket in buckets)
        for start in range(0, size, piece):
            remaining = min(piece, size - start)
            # Waiting comes first: meanwhile more arrives, so that fewer calls move it.
            if wait_s := max(bucket.take(remaining) for bucket in buckets):
                self._proxy.wait(wait_s)
            if data := self._server.take_ahead(remaining):
                self._send(exchange, data)
                remaining -= len(data)
            while remaining:
                count = os.splice(self._server.end.fileno(), self._pipe[1], remaining)
                if not count:
                    raise ConnectionError
                exchange.body_bytes += count
                remaining -= count
                while count:
                    count -= os.splice(self._pipe[0], self._client.end.fileno(), count)

    def _send(self, exchange: Exchange, data: bytes) -> None:
        exchange.body_bytes += len(data)  # first, so that no client knows more than the count
        self._client.end.sendall(data)

    def _read_byte(self) -> int:
        assert self._server is not None
        data = self._server.take_ahead(1) or self._server.end.recv(1)
        if not data:
            raise ConnectionError
        return data[0]

    def _refuse(self, exchange: Exchange, status: int, code: str) -> None:
        exchange.status = status
        text = f"<Error><Code>{code}</Code><Message>as told</Message></Error>"
        body = b"" if exchange.method == "HEAD" else text.encode()
        headers = {"content-type": "application/xml", "content-length": str(len(body))}
        self._client.end.sendall(_encode_head(f"HTTP/1.1 {status} -", headers))
        self._send(exchange, body)

    def _drop_server(self) -> None:
        if self._server is not None:
            self._proxy.track(self._server.end, is_open=False)
            self._server.end.close()
            self._server = None


def _encode_head(line: str, headers: Mapping[str, str]) -> bytes:
    lines = [line, *(f"{name}: {text}" for name, text in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def main(parent: int, port: int, rate: float, delay_s: float) -> None:
    die_with_parent(parent)
    with StoreProxy(port, rate=rate, delay_s=delay_s) as proxy:
        print(proxy.port, flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
