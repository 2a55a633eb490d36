"""dns:// follows a headless Service: real feeders, and a resolver that the test changes."""

import contextlib
import itertools
import socket
from collections.abc import Callable
from pathlib import Path

from bench.daemon import READY_LINE
from tests.faults.client import Client
from tests.support.daemon import Daemon, customised, serve, wait_until
from tests.support.lent_client import digest, make_numpy_loader

SERVICE = "feeder.training.svc"
PODS = ("127.0.9.2", "127.0.9.3", "127.0.9.4", "127.0.9.5")
RESOLVER = """
import sys
if "tests.faults.client" in sys.orig_argv:
    import pathlib, socket
    from feeder.client.endpoints import INTERVALS_S
    INTERVALS_S["dns"] = 0.3
    records = pathlib.Path({records!r})
    def resolve(host, port, *rest, real=socket.getaddrinfo, **options):
        if host != {name!r}:
            return real(host, port, *rest, **options)
        addresses = records.read_text().split()
        with records.with_name("questions").open("a") as log:
            log.write(".")
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in addresses]
    socket.getaddrinfo = resolve
"""
"""A sitecustomize of the client's process: a resolver, and a shorter interval of look-ups."""


def common_port() -> int:
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


def test_a_client_follows_the_changes_of_a_headless_service(packed: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"

    def publish(*addresses: str) -> None:
        """Change the addresses of the name; none: the name server does not answer."""
        unfinished = records.with_suffix(".new")
        unfinished.write_text(" ".join(addresses))
        unfinished.replace(records)

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
        publish(*PODS[:2])
        code = RESOLVER.format(records=str(records), name=SERVICE)
        client = stack.enter_context(Client(environ=customised(tmp_path / "site", code)))
        client.open(f"dns://{SERVICE}:{port}")
        client.opened()
        trainer = Trainer(client)

        trainer.take_until(lambda: sessions(a) == sessions(b) == 1, "it has found both pods")
        assert sessions(c) == 0

        publish(*PODS[:3])
        trainer.take_until(lambda: sessions(c) == 1, "it has found a pod that was added")

        publish(*PODS[1:3])
        trainer.take_until(lambda: sessions(a) == 0, "it has left a pod that was removed")

        assert b.stop()[0] == 0
        d = start(PODS[3], "node-1")
        d.wait_line(READY_LINE)
        publish(*PODS[2:4])
        trainer.take_until(lambda: sessions(d) == 1, "it has found a pod that was renumbered")

        publish()
        questions = records.with_name("questions")
        asked = questions.stat().st_size
        trainer.take_until(lambda: questions.stat().st_size >= asked + 4, "it asks again and again")
        assert sessions(c) == sessions(d) == 1, "the last list stays valid"

        publish(PODS[0], *PODS[2:4])
        trainer.take_until(lambda: sessions(a) == 1, "it follows again after the silence")
        trainer.take(5)
        assert trainer.taken == undisturbed(c.endpoint, len(trainer.taken))
