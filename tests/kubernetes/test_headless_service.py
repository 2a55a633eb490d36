"""dns:// follows a headless Service: real feeders, a real resolver, a small DNS server.

The client has a resolv.conf of its own, as the kubelet writes it, in a mount namespace.
"""

import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.daemon import READY_LINE
from feeder.client.endpoints import INTERVALS_S
from tests.faults.client import Client
from tests.kubernetes.name_server import NameServer
from tests.support.daemon import Daemon, customised, serve, wait_until
from tests.support.lent_client import digest, make_numpy_loader
from tests.support.sources import REPOSITORY

SERVICE = "feeder.training.svc"
FULL_NAME = f"{SERVICE}.cluster.local"
SERVER = "127.0.9.53"
PODS = ("127.0.9.2", "127.0.9.3", "127.0.9.4", "127.0.9.5")
RESOLVER = f"""\
search training.svc.cluster.local svc.cluster.local cluster.local
nameserver {SERVER}
options ndots:5 timeout:1 attempts:1
"""
WITH_RESOLVER = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"')


INTERVAL = """
import sys
if "tests.faults.client" in sys.orig_argv:
    from feeder.client.endpoints import INTERVALS_S
    INTERVALS_S["dns"] = {}
"""
"""A sitecustomize: how often the client looks names up."""

READ = """
import json, sys
from feeder.client.endpoints import Source
source = Source(sys.argv[1])
source.read()
print(json.dumps(list(source.listing)))
"""


@pytest.fixture
def server() -> Iterator[NameServer]:
    try:
        server = NameServer(SERVER)
    except OSError as error:
        pytest.skip(f"port 53 of {SERVER} cannot be bound here: {error.strerror}")
    with server:
        yield server


@pytest.fixture
def prefix(tmp_path: Path) -> tuple[str, ...]:
    """A command prefix under which names are looked up at the server."""
    path = tmp_path / "resolv.conf"
    path.write_text(RESOLVER)
    command = (*WITH_RESOLVER, str(path))
    done = subprocess.run([*command, "true"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"/etc/resolv.conf cannot be replaced here: {done.stderr.strip()}")
    return command


def common_port() -> int:
    """Return a port that is free at all pods' addresses."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            sockets = [stack.enter_context(socket.socket()) for _ in PODS]
            sockets[0].bind((PODS[0], 0))
            port = int(sockets[0].getsockname()[1])
            for each, address in zip(sockets[1:], PODS[1:], strict=True):
                each.bind((address, port))
            return port


def sessions(pod: Daemon) -> int:
    return int(pod.counters()["sessions"])


def undisturbed(endpoint: str, batches: int) -> list[str]:
    """Return the batches of a client of one feeder."""
    with make_numpy_loader(endpoint) as loader:
        endless = (batch for _ in iter(int, 1) for batch in loader)
        return [digest(batch) for batch in itertools.islice(endless, batches)]


class Trainer:
    """A client process that takes batches while the test waits for something."""

    def __init__(self, client: Client) -> None:
        self.taken: list[str] = []
        self._client = client

    def take_until(self, holds: Callable[[], bool], what: str) -> None:
        """Take batches until ``holds()``."""
        wait_until(lambda: self.take(1) or holds(), what)

    def take(self, batches: int) -> None:
        self.taken += self._client.take(batches)


@pytest.mark.parametrize(
    "interval_s",
    [
        0.3,
        pytest.param(
            INTERVALS_S["dns"],
            marks=pytest.mark.extensive(
                "the real interval between look-ups: a minute; make test has 0.3 s"
            ),
        ),
    ],
    ids=["often", "as it is"],
)
def test_a_client_follows_the_changes_of_a_headless_service(
    packed: Path, server: NameServer, prefix: tuple[str, ...], interval_s: float, tmp_path: Path
) -> None:
    port = common_port()

    def start(address: str, name: str) -> Daemon:
        bind, options = f"tcp://{address}:{port}", ("--name", name, "--chunk-images", "4")
        pod = serve(packed, *options, bind=bind, workers=1, is_ready=False)
        pod.endpoints = [bind]
        return stack.enter_context(pod)

    with contextlib.ExitStack() as stack:
        a, b, c = (start(address, f"node-{number}") for number, address in enumerate(PODS[:3]))
        for pod in (a, b, c):
            pod.wait_line(READY_LINE)
        server.publish(FULL_NAME, PODS[:2])
        environ = customised(tmp_path / "site", INTERVAL.format(interval_s))
        client = stack.enter_context(Client(prefix=prefix, environ=environ))
        client.open(f"dns://{SERVICE}:{port}")
        client.opened()
        trainer = Trainer(client)

        trainer.take_until(lambda: sessions(a) == sessions(b) == 1, "it has found both pods")
        assert sessions(c) == 0

        server.publish(FULL_NAME, PODS[:3])
        trainer.take_until(lambda: sessions(c) == 1, "it has found a pod that was added")

        server.publish(FULL_NAME, PODS[1:3])
        trainer.take_until(lambda: sessions(a) == 0, "it has left a pod that was removed")

        assert b.stop()[0] == 0
        d = start(PODS[3], "node-1")
        d.wait_line(READY_LINE)
        server.publish(FULL_NAME, PODS[2:4])
        trainer.take_until(lambda: sessions(d) == 1, "it has found a pod that was renumbered")

        server.is_silent = True
        asked = server.questions
        trainer.take_until(lambda: server.questions >= asked + 4, "it asks again and again")
        assert sessions(c) == sessions(d) == 1, "the last list stays valid"
        server.is_silent = False

        server.publish(FULL_NAME, [PODS[0], *PODS[2:4]])
        trainer.take_until(lambda: sessions(a) == 1, "it follows again after the silence")
        trainer.take(5)
        assert trainer.taken == undisturbed(c.endpoint, len(trainer.taken))


def test_a_service_of_more_pods_than_one_datagram_holds_is_read_whole(
    server: NameServer, prefix: tuple[str, ...]
) -> None:
    v4 = [f"10.7.{number // 250}.{number % 250 + 1}" for number in range(300)]
    v6 = [f"fd00::{number + 1:x}" for number in range(300)]
    server.publish(FULL_NAME, [*v4, *v6])
    command = [*prefix, sys.executable, "-c", READ, f"dns://{SERVICE}:5555"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True
    )
    wanted = {f"tcp://{each}:5555" for each in v4} | {f"tcp://[{each}]:5555" for each in v6}
    assert set(json.loads(done.stdout)) == wanted
