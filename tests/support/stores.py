"""Object stores on the loopback address for tests: nginx and moto, with a faulty proxy before them.

with loopback_store({"set": folder}) as store, StoreProxy(store.port) as proxy:
    monkeypatch… store.environ(proxy.endpoint)     s3://bucket/set is then behind the proxy
    proxy.strike("reset", "*/shard-*", times=2)    (bench/store_proxy.py has the faults)
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.daemon import free_port
from bench.line_process import LineProcess
from bench.loopback_store import S3_ENVIRON as S3_ENVIRON
from bench.loopback_store import LoopbackStore
from feeder.errors import ResourceError
from feeder.process.child import python_command
from tests.support.raw_client import DEADLINE_S
from tests.support.sources import REPOSITORY

_MOTO = """\
import os, sys
from feeder.process.child import die_with_parent
die_with_parent(int(sys.argv[1]))
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[2]), verbose=False)
server.start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
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


@contextmanager
def moto_store() -> Iterator[int]:
    """Run moto's S3, which lists, and knows credentials and versions; yield its port.

    Buckets and objects are what a test puts there, over HTTP. Skips where it is not installed.
    """
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    port = free_port()
    command = [*python_command("x")[:2], "-c", _MOTO, str(os.getpid()), str(port)]
    with LineProcess(command, cwd=REPOSITORY, log=os.open(os.devnull, os.O_WRONLY)) as process:
        assert process.next_line(DEADLINE_S) == "ready"
        yield port
