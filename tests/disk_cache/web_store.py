"""A web server on loopback as a store: ranges, ETags, faults on demand, a list of requests."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Fault = Callable[[str, int, int], str]
"""Of a request for bytes first .. end - 1 of an object: "" or "500", "403", "reset", "short",
"wrong" (bytes), "hold" (until ``release``)."""

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class WebStore:
    folder: Path
    url: str = ""
    fault: Fault = lambda name, first, end: ""
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    """Of those that sent bytes: object, first byte, end."""
    conditions: list[str] = field(default_factory=list)
    """If-Match of all requests for shards, "" where there was none."""
    held: int = 0
    is_away: bool = False
    _released: threading.Event = field(default_factory=threading.Event)
    _etags: dict[tuple[str, int], str] = field(default_factory=dict)

    def release(self) -> None:
        self._released.set()

    def sent_bytes(self, suffix: str = ".fds") -> int:
        return sum(end - first for name, first, end in self.requests if name.endswith(suffix))

    def doubly_sent(self) -> list[tuple[str, int]]:
        """The bytes of shards that were sent before, as (shard, first byte)."""
        last: dict[str, int] = {}
        twice = []
        for name, first, end in sorted(self.requests):
            if name.endswith(".fds"):
                if first < last.get(name, 0):
                    twice.append((name, first))
                last[name] = max(end, last.get(name, 0))
        return twice

    def etag(self, path: Path) -> str:
        key = str(path), path.stat().st_mtime_ns
        if key not in self._etags:
            self._etags[key] = f'"{md5(path.read_bytes()).hexdigest()}"'
        return self._etags[key]


@contextmanager
def serve_store(folder: Path) -> Iterator[WebStore]:
    store = WebStore(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            path = folder / name
            if store.is_away:
                self.close_connection = True
                return
            if not path.is_file():
                self._refuse(404)
                return
            etag, size = store.etag(path), path.stat().st_size
            if path.suffix == ".fds":
                store.conditions.append(self.headers.get("If-Match", ""))
            if self.headers.get("If-Match", etag) != etag:
                self._refuse(412)
                return
            match = _RANGE.fullmatch(self.headers.get("Range", ""))
            first = int(match[1]) if match else 0
            end = min(int(match[2]) + 1, size) if match and match[2] else size
            fault = store.fault(name, first, end)
            if fault.isdecimal():
                self._refuse(int(fault))
                return
            if fault != "hold":
                self._send(path, first, end, size, etag, fault, is_part=match is not None)
                return
            store.held += 1
            try:
                store._released.wait(60)
                self._send(path, first, end, size, etag, "", is_part=match is not None)
            finally:
                store.held -= 1

        def _send(
            self, path: Path, first: int, end: int, size: int, etag: str, fault: str, is_part: bool
        ) -> None:
            with path.open("rb") as file:
                file.seek(first)
                data = bytearray(file.read(end - first))
            if fault == "wrong":
                data[len(data) // 2] ^= 1
            self.send_response(206 if is_part else 200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", etag)
            self.send_header("Accept-Ranges", "bytes")
            if is_part:
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
            self.end_headers()
            if fault in ("reset", "short"):
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                return
            if fault != "wrong":
                # before the client can see the end
                store.requests.append((path.name, first, end))
            self.wfile.write(data)

        def _refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *arguments: Any) -> None:
            pass  # a client that was killed

    server = Server(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield store
    finally:
        store.release()
        server.shutdown()
        thread.join()
        server.server_close()
