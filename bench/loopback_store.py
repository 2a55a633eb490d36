"""An S3 server on the loopback address: nginx, which serves folders as prefixes of one bucket.

    with LoopbackStore({"name": folder}) as store:
        store.url("name")        s3://bucket/name, for processes that have ``store.environ()``
        store.http_url("name")   http://127.0.0.1:PORT/bucket/name

It answers GET and HEAD with ranges, ETags and If-Match, ignores signatures, and cannot list. Its
log is the account of what has left it: ``answers`` reads it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import unquote

from feeder.errors import ResourceError

from .daemon import free_port
from .footprint import busy_s, family
from .line_process import await_port, dying_with_us, start_process, stop_process

BUCKET: Final = "bucket"
PROGRAM: Final = "nginx"

_READY_S: Final = 10.0
# One process, so that its CPU time is one number and it needs no user to drop privileges to. The
# client and the network are to be the limit: files are sent by sendfile, and no connection ends.
_CONFIGURATION: Final = """\
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors warn;
events {{ worker_connections 1024; }}
http {{
  log_format line '$request_method $uri $status $body_bytes_sent "$http_range"';
  access_log {folder}/answers line;
  default_type application/octet-stream;
  sendfile on; tcp_nopush on; sendfile_max_chunk 1m; output_buffers 2 1m;
  keepalive_requests 100000000; keepalive_timeout 3600s;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port} backlog=1024; root {folder}/root; }}
}}
"""


class Answer(NamedTuple):
    """One answer of the server, as it logged it when the last byte was sent."""

    method: str
    path: str
    status: int
    body_bytes: int
    asked: str
    """The Range header, "-" without one."""


class LoopbackStore:
    """A running server; a context manager that ends it."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """Serve each folder below its name; ResourceError where nginx is missing or fails."""
        program = shutil.which(PROGRAM) or shutil.which(f"/usr/sbin/{PROGRAM}")
        if program is None:
            raise ResourceError(
                f"{PROGRAM}, which serves the dataset, is not installed: "
                f"apt-get install {PROGRAM}-light"
            )
        self.port = free_port()
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-"))
            ).resolve()
            self.root = folder / "root" / BUCKET  # links, so that a prefix can be exchanged
            self.root.mkdir(parents=True)
            for name, source in folders.items():
                (self.root / name).symlink_to(source.resolve())
            self._answers = folder / "answers"
            configuration = folder / "nginx.conf"
            configuration.write_text(_CONFIGURATION.format(folder=folder, port=self.port))
            command = dying_with_us(program, "-c", str(configuration))
            self._process = start_process(command, stderr=subprocess.PIPE)
            stack.callback(self._stop)
            self._await_ready()
            self._resources = stack.pop_all()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def http_url(self, name: str) -> str:
        return f"{self.endpoint}/{BUCKET}/{name}"

    def environ(self, endpoint: str = "") -> dict[str, str]:
        """Return the variables with which s3:// means this server, perhaps behind a proxy."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "feeder-bench",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        }

    def answers(self) -> list[Answer]:
        lines = self._answers.read_text("utf-8").splitlines()
        return [_parse(line) for line in lines]

    def body_bytes(self) -> int:
        """Return how many bytes of objects have left the server so far."""
        return sum(answer.body_bytes for answer in self.answers() if answer.status < 300)

    def busy_s(self) -> float:
        return busy_s(process.pid for process in family(self._process.pid))

    def close(self) -> None:
        """End it. Idempotent."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        if not await_port(self.port, self._process, _READY_S):
            assert self._process.stderr is not None
            self._process.kill()
            lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            problem = lines[-1] if lines else f"it does not listen within {_READY_S:g} s"
            raise ResourceError(f"{PROGRAM} does not start: {problem}")

    def _stop(self) -> None:
        stop_process(self._process)
        assert self._process.stderr is not None
        self._process.stderr.close()


def _parse(line: str) -> Answer:
    words, asked, _ = line.rsplit('"', 2)
    method, path, status, size = words.strip().rsplit(" ", 3)
    return Answer(method, unquote(path), int(status), int(size), asked)
