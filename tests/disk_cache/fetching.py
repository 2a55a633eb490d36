"""A fetcher's process for tests, with the supervisor's and the node processes' ends."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from feeder.disk_cache.folder import DiskCache
from feeder.disk_cache.messages import (
    Absent,
    CannotFetch,
    FetcherBeat,
    FetcherConfig,
    FetcherToNode,
    FetcherToSupervisor,
    Here,
    NodeToFetcher,
    Serving,
    SupervisorToFetcher,
    Want,
)
from feeder.metrics.records import StoreRecord
from feeder.process.channel import Channel
from feeder.process.child import start_child

DEADLINE_S = 60.0


class NodeEnd:
    """A node process's connection."""

    def __init__(self, address: str) -> None:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.settimeout(DEADLINE_S)
        end.connect(address)
        self.channel: Channel[NodeToFetcher, FetcherToNode] = Channel(end, FetcherToNode)
        assert self.channel.receive() == Serving()

    def send(self, *messages: NodeToFetcher) -> None:
        for message in messages:
            self.channel.send(message)

    def receive(self) -> FetcherToNode:
        answer = self.channel.receive()
        assert answer is not None, "the fetcher does not answer"
        return answer

    def want(
        self,
        number: int,
        first: int,
        end: int,
        *,
        dataset: str = "blobs",
        whole: bool = True,
        doubted: bool = False,
    ) -> FetcherToNode:
        self.send(Want(number, dataset, ((first, end),), whole, doubted=doubted))
        answer = self.receive()
        assert isinstance(answer, Here | Absent)
        assert answer.number == number
        return answer

    def close(self) -> None:
        self.channel.close()


class FetcherProcess:
    def __init__(
        self,
        cache: DiskCache,
        folders: Mapping[str, Path],
        budget_bytes: int = 0,
        peers: tuple[str, ...] = (),
    ) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(b"")  # abstract, of a name that the kernel chooses
        self._listener.listen(16)
        self.address = self._listener.getsockname()
        self.process, end = start_child("feeder.disk_cache", stderr=subprocess.PIPE)
        end.settimeout(DEADLINE_S)
        self.control: Channel[SupervisorToFetcher, FetcherToSupervisor] = Channel(
            end, FetcherToSupervisor
        )
        config = FetcherConfig(
            datasets={name: os.fsencode(folder) for name, folder in folders.items()},
            disk_path=os.fsencode(cache.root.parent),
            disk_bytes=budget_bytes,
            peers=peers,
            name="own",
        )
        self.control.send(config, self._listener.fileno())

    def beat(self) -> StoreRecord:
        """The next record."""
        message = self.control.receive()
        assert isinstance(message, FetcherBeat), message
        return message.record

    def failure(self) -> CannotFetch:
        message = self.control.receive()
        assert isinstance(message, CannotFetch), message
        return message

    def connect(self) -> NodeEnd:
        return NodeEnd(self.address)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> str:
        """End it as the supervisor does; return what it logged."""
        self.control.close()
        self._listener.close()
        assert self.process.stderr is not None
        log = self.process.stderr.read().decode()
        self.process.stderr.close()
        assert self.process.wait(DEADLINE_S) in (0, -signal.SIGKILL)
        return log


@contextmanager
def fetching(
    cache: DiskCache,
    folders: Mapping[str, Path],
    budget_bytes: int = 0,
    peers: tuple[str, ...] = (),
) -> Iterator[tuple[FetcherProcess, NodeEnd]]:
    fetcher = FetcherProcess(cache, folders, budget_bytes, peers)
    try:
        with closing(fetcher.connect()) as node:
            yield fetcher, node
    finally:
        fetcher.stop()


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)
