"""Object stores on loopback: moto, which behaves as S3 does, and one whose answers can be spoilt.

``s3`` (tests/conftest.py) is the session's moto. Both have an ``endpoint`` and the ``environment``
with which Feeder, or any client of S3, uses them. moto ignores signatures.

For daemons there is nginx, whose ``environ`` may name a proxy before it, which limits the rate and
has faults that are switched while bytes flow:

    with loopback_store({"set": folder}) as store, StoreProxy(store.port) as proxy:
        … store.url("set"), store.environ(proxy.endpoint) …
        proxy.strike("reset", "*/shard-*", times=2)
"""

import contextlib
import http.server
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from bench.loopback_store import LoopbackStore
from feeder.errors import ResourceError
from tests.support.raw_client import DEADLINE_S, wait_until

_MOTO = """
import os, sys
from feeder.process.child import die_with_parent
die_with_parent(int(sys.argv[1]))
from moto.server import main
main(["-H", "127.0.0.1", "-p", "0"])
"""


def client_environment(endpoint: str) -> dict[str, str]:
    """Return what clients of S3 need for a store on loopback, with any keys."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }


class S3Server:
    """moto's server, in a process of its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.environment = client_environment(endpoint)

    def make_bucket(self, name: str) -> None:
        self._send("PUT", name)

    def put(self, bucket: str, key: str, data: bytes, *, is_public: bool = False) -> None:
        self._send(
            "PUT", f"{bucket}/{key}", data, {"x-amz-acl": "public-read"} if is_public else {}
        )

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Upload the files below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                self.put(bucket, f"{prefix}/{name}".strip("/"), path.read_bytes())

    def delete(self, bucket: str, key: str) -> None:
        self._send("DELETE", f"{bucket}/{key}")

    def _send(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] = {}
    ) -> None:
        url = f"{self.endpoint}/{urllib.request.pathname2url(path)}"
        headers = {
            "Content-Type": "application/octet-stream",  # else moto takes the data for a form
            "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request",
            **headers,
        }
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S):
            pass


@contextlib.contextmanager
def s3_server(folder: Path, parent: int) -> Iterator[S3Server]:
    """Run moto, with its log in a folder; it ends with process ``parent``, which is this one."""
    pytest.importorskip("moto")
    log = folder / "moto.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _MOTO, str(parent)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        running = re.compile(r"Running on (http://\S+)")
        wait_until(lambda: running.search(log.read_text()) or process.poll() is not None, "moto")
        match = running.search(log.read_text())
        assert match is not None, log.read_text()
        yield S3Server(match[1])
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def loopback_store(folders: Mapping[str, Path]) -> Iterator[LoopbackStore]:
    """Serve folders by nginx; skips where it is not installed."""
    try:
        store = LoopbackStore(folders)
    except ResourceError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    with store:
        yield store


# --- A store whose answers can be spoilt ----------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer before it is sent: faults are functions that change it."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent_bytes: int | None = None
    """How much of the body is sent; None: all."""
    ending: str = "keep"
    """What follows: "keep" the connection, "close", "reset", or "stall" until the store closes."""
    held: threading.Event | None = None
    """Waited for before anything is sent."""


Fault = Callable[[Answer], Answer]


def status(code: int, body: str = "") -> Fault:
    return lambda answer: Answer(code, body=body.encode())


def refusal(code: int, reason: str, message: str = "because") -> Fault:
    """Refuse as S3 does."""
    text = f"<?xml version='1.0'?><Error><Code>{reason}</Code><Message>{message}</Message></Error>"
    return status(code, text)


def reset(answer: Answer) -> Answer:
    """Reset the connection in the middle of the body."""
    return replace(answer, sent_bytes=len(answer.body) // 2, ending="reset")


def cut(answer: Answer) -> Answer:
    """Close the connection in the middle of the body."""
    return replace(answer, sent_bytes=len(answer.body) // 2, ending="close")


def stall(answer: Answer) -> Answer:
    """Send half of the body, then nothing."""
    return replace(answer, sent_bytes=len(answer.body) // 2, ending="stall")


def short(answer: Answer) -> Answer:
    """Send a shorter range than was asked for, as a whole answer."""
    body = answer.body[: len(answer.body) // 2]
    first, _, whole = re.split(r"[-/]", answer.headers["Content-Range"].removeprefix("bytes "))
    content_range = f"bytes {first}-{int(first) + len(body) - 1}/{whole}"
    return replace(answer, body=body, headers={**answer.headers, "Content-Range": content_range})


def flip(answer: Answer) -> Answer:
    """Send wrong bytes."""
    return replace(answer, body=bytes(byte ^ 0xFF for byte in answer.body))


def hold(event: threading.Event) -> Fault:
    """Send nothing before an event."""
    return lambda answer: replace(answer, held=event)


class FaultyStore:
    """A store in a thread, S3 by path or a plain web server, with faults to order.

    ``objects`` are by "BUCKET/KEY"; a bucket is one that has objects. Listings are by pages.
    """

    def __init__(self, objects: MutableMapping[str, bytes], *, page_objects: int = 1000) -> None:
        self.objects = objects
        self.page_objects = page_objects
        self.ignores_ranges = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """The method, the path and the headers of each, in order."""
        self.connections: list[socket.socket] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.closing = threading.Event()
        store = self

        class Handler(_Handler):
            owner = store

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # so that close() waits for them
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.environment = client_environment(self.endpoint)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def fail(self, name: str, *faults: Fault, times: int = 1) -> None:
        """Spoil the next answers about a path that ends with ``name``, by a fault each."""
        self.faults[name].extend(faults * times)

    def etag(self, path: str) -> str:
        return f'"{md5(self.objects[path], usedforsecurity=False).hexdigest()}"'

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "FaultyStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        path = unquote(urlsplit(target).path).strip("/")
        answer = self._list(path, target) if "list-type=2" in target else self._get(path, headers)
        for name, faults in self.faults.items():
            if path.endswith(name) and faults:
                return faults.popleft()(answer)
        return answer

    def _get(self, path: str, headers: Mapping[str, str]) -> Answer:
        body = self.objects.get(path)
        if body is None:
            bucket = path.partition("/")[0]
            has_bucket = any(name.startswith(f"{bucket}/") for name in self.objects)
            return refusal(404, "NoSuchKey" if has_bucket else "NoSuchBucket")(Answer(404))
        about = {"ETag": self.etag(path), "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if headers.get("If-Match", about["ETag"]) != about["ETag"]:
            return refusal(412, "PreconditionFailed")(Answer(412))
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", ""))
        if match is None or self.ignores_ranges:
            return Answer(200, about, body)
        first, last = int(match[1]), min(int(match[2] or len(body)), len(body) - 1)
        if first >= len(body):
            return refusal(416, "InvalidRange")(Answer(416))
        about["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return Answer(206, about, body[first : last + 1])

    def _list(self, bucket: str, target: str) -> Answer:
        if not any(path.startswith(f"{bucket}/") for path in self.objects):
            return refusal(404, "NoSuchBucket")(Answer(404))
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(
            key
            for key in (path.removeprefix(f"{bucket}/") for path in self.objects)
            if key.startswith(query.get("prefix", "")) and key > after
        )
        folders = []
        if "delimiter" in query:  # as one page
            end = len(query.get("prefix", ""))
            folders = sorted({key[: key.index("/", end) + 1] for key in keys if "/" in key[end:]})
            keys = [key for key in keys if "/" not in key[end:]]
        page = keys if "delimiter" in query else keys[: self.page_objects]
        token = f"<NextContinuationToken>{escape(page[-1] if page else '')}</NextContinuationToken>"
        entries = (
            f"<Contents><Key>{escape(key)}</Key><ETag>{self.etag(f'{bucket}/{key}')}</ETag>"
            f"<Size>{len(self.objects[f'{bucket}/{key}'])}</Size>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        prefixes = (
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
        )
        text = f"{''.join(entries)}{''.join(prefixes)}{token if len(page) < len(keys) else ''}"
        return Answer(200, body=f"<ListBucketResult>{text}</ListBucketResult>".encode())


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FaultyStore
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for a delayed acknowledgement

    def handle(self) -> None:
        self.owner.connections.append(self.connection)
        with contextlib.suppress(OSError):  # the client's end, or a reset of ours
            super().handle()

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.owner.requests.append((self.command, self.path, dict(self.headers)))
        answer, closing = self.owner.answer(self.path, self.headers), self.owner.closing
        if answer.held is not None:
            wait_until(lambda: answer.held.is_set() or closing.is_set(), "an answer that is held")
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.sent_bytes])
        self.wfile.flush()
        if answer.ending == "stall":
            closing.wait(DEADLINE_S)
        if answer.ending == "reset":
            linger = struct.pack("ii", 1, 0)  # close() then sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection |= answer.ending != "keep"

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815, what http.server calls

    def log_message(self, *_: Any) -> None:
        pass
