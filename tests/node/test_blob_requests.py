"""Other feeders' requests for blobs: what is there, which worker reads it, and what is refused."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from feeder.client.stats import StatsLink
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.node.blob_requests import BURST_S, SENDING_MAX, SHARE, BlobRequests
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import ServedDataset
from feeder.wire.messages import Blobs, BlobsRequest, NodeMessage, Refused, decode_from_node
from feeder.worker.messages import BlobsRead, ReadBlobs
from tests.support.daemon import serve
from tests.support.raw_client import DEADLINE_S, wait_until

SERVED = ServedDataset(content="f", classes=(), layout=ShardLayout(samples=10, shards=2))
BROKEN = "it cannot be served"
MISSING = (4, 9)


class Node:
    """The requests of a node with two workers, and all that it sends."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.read: list[tuple[int, ReadBlobs]] = []
        self.sent: list[tuple[bytes, NodeMessage, bytes]] = []
        self.frames: list[Any] = []
        self.stalled: set[str] = set()
        pool: Any = SimpleNamespace(
            numbers=(7, 8), send=lambda worker, message: self.read.append((worker, message))
        )
        self.chunks: dict[int, list[int]] = {7: [1], 8: []}
        watch: Any = SimpleNamespace(
            stalled_names=self.stalled,
            workers={n: SimpleNamespace(chunks=chunks) for n, chunks in self.chunks.items()},
        )
        self.requests = BlobRequests(
            {"broken": BROKEN, "birds": SERVED},
            self.find_there,
            pool,
            watch,
            SimpleNamespace(send=self.send),  # type: ignore[arg-type]
        )

    def find_there(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        assert name == "birds"
        return ~np.isin(ids, MISSING)

    def send(self, peer: bytes, header: bytes, frame: Any = b"") -> bool:
        self.frames.append(frame)  # a frame that is kept is one that the socket has not sent
        payload = frame.bytes if isinstance(frame, zmq.Frame) else frame
        self.sent.append((peer, decode_from_node(header), payload))
        return True

    def ask(self, *sample_ids: int, peer: bytes = b"p", content: str = "f") -> None:
        self.requests.add(peer, BlobsRequest(content=content, sample_ids=sample_ids), self.now_s)

    def answer(self, *blobs: bytes, busy_s: float = 0.001, problem: str = "") -> None:
        """Answer the last request as its worker does."""
        fd = os.memfd_create("blobs")
        os.write(fd, b"".join(blobs))
        read = BlobsRead(self.read[-1][1].ticket, tuple(map(len, blobs)), busy_s, problem)
        self.requests.on_read(read, fd)

    def await_sent(self) -> None:
        self.frames.clear()
        sending = self.requests._sending
        wait_until(lambda: all(tracker.done for _, tracker in sending), "the socket is empty")

    def refusal(self) -> str:
        refused = self.sent[-1][1]
        assert isinstance(refused, Refused)
        return f"{refused.code}: {refused.message}"


def test_an_idle_worker_reads_what_is_there_and_its_memory_is_sent() -> None:
    node = Node()
    node.ask(3, 4, 1, 9)
    assert node.read == [(8, ReadBlobs(1, "birds", (3, 1)))]
    node.answer(b"three", b"one")
    assert node.sent == [(b"p", Blobs(sizes=(5, 0, 3, 0)), b"threeone")]
    counters = node.requests.counters
    assert (counters.blobs_sent, counters.blobs_sent_bytes, counters.blobs_missed) == (2, 8, 2)


def test_a_daemon_sends_the_blobs_of_its_dataset(packed: Path, dataset: Dataset) -> None:
    ids = tuple(range(dataset.layout.samples))
    scratch = np.empty(1 << 20, np.uint8)
    blobs = [
        bytes(dataset.read_blob(location, scratch))
        for location in dataset.find_blobs(np.array(ids), dataset.read_records(np.array(ids)))
    ]
    with serve(packed, workers=1) as daemon, StatsLink(daemon.endpoint) as link:
        received: list[bytes] = []
        while len(received) < len(ids):  # a busy worker sends fewer at a time
            request = BlobsRequest(content=dataset.content, sample_ids=ids[len(received) :])
            answer = link.request(request, Blobs, DEADLINE_S)
            frame = bytes(link.frames[0].buffer)
            ends = [*itertools.accumulate(answer.sizes, initial=0)]
            received += [frame[at:end] for at, end in itertools.pairwise(ends)]
        assert received == blobs
        with pytest.raises(DatasetError, match="no dataset with content fingerprint e is served"):
            link.request(BlobsRequest(content="e", sample_ids=(1,)), Blobs, DEADLINE_S)
        counters = daemon.counters()
        assert counters["blobs_sent"] == len(ids)
        assert counters["connections_opened"] == 2, "a refusal costs no connection"


def test_what_is_nowhere_here_takes_no_worker() -> None:
    node = Node()
    node.ask(4, 9)
    assert (node.read, node.sent) == ([], [(b"p", Blobs(sizes=(0, 0)), b"")])


def test_an_answer_ends_before_what_could_not_be_read_in_time() -> None:
    node = Node()
    node.ask(3, 4, 1, 9, 2)
    node.answer(b"three")
    assert node.sent[-1][1:] == (Blobs(sizes=(5, 0)), b"three")
    node.ask(1, 9, 2)
    node.answer(b"one", b"")
    assert node.sent[-1][1:] == (Blobs(sizes=(3, 0, 0)), b"one"), "the last one is damaged"


@pytest.mark.parametrize(
    ("content", "sample_ids", "line"),
    [
        ("e", (1,), "unknown-dataset: no dataset with content fingerprint e is served here, but f"),
        ("f", (1, 10), "range: dataset birds has 10 samples"),
    ],
)
def test_what_is_not_served_is_refused(
    content: str, sample_ids: tuple[int, ...], line: str
) -> None:
    node = Node()
    node.ask(*sample_ids, content=content)
    assert (node.refusal(), node.read) == (line, [])


def test_storage_that_does_not_answer_is_not_read() -> None:
    node = Node()
    node.stalled.add("birds")
    node.ask(1)
    assert node.refusal() == "unreadable: the storage of dataset birds does not answer"


def test_what_a_worker_cannot_read_is_refused() -> None:
    node = Node()
    node.ask(1)
    node.answer(problem="the manifest is gone")
    assert node.refusal() == "unreadable: samples cannot be read: the manifest is gone"
    node.ask(1)
    node.requests.on_lost(node.read[-1][0] + 1)
    assert len(node.sent) == 1
    node.requests.on_lost(node.read[-1][0])
    assert node.refusal() == "unreadable: samples cannot be read: the worker ended"


def test_workers_have_few_requests_at_a_time() -> None:
    node = Node()
    for peer in (b"a", b"b", b"c", b"d", b"e"):
        node.ask(1, peer=peer)
    assert [worker for worker, _ in node.read] == [8, 7, 8, 7]
    assert [peer for peer, _, _ in node.sent] == [b"e"]
    assert node.refusal().startswith("rate: ")
    assert node.requests.counters.blobs_refused == 1


def test_reading_takes_its_share_of_the_workers_time() -> None:
    """Two workers; each read takes 10 ms, and as many are asked for as are answered."""
    node, seconds = Node(), 20.0
    while node.now_s < 100.0 + seconds:
        reads = len(node.read)
        node.ask(1)
        if len(node.read) > reads:
            node.answer(b"one", busy_s=0.01)
            node.await_sent()
        node.now_s += 0.01
    read_s = node.requests.counters.blobs_read_s
    assert SHARE * 2 * seconds < read_s <= SHARE * 2 * (seconds + BURST_S) + 0.01


def count_memories() -> int:
    """How many anonymous files this process has open, for answers among others."""
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum("memfd:" in os.readlink(path) for path in paths if os.path.lexists(path))


def test_answers_that_the_socket_has_not_sent_are_bounded() -> None:
    node = Node()
    before = count_memories()
    for peer in range(SENDING_MAX // 2):
        for _ in range(2):
            node.ask(1, peer=b"%d" % peer)
            node.answer(b"0123456789")
    assert all(isinstance(message, Blobs) for _, message, _ in node.sent)
    node.ask(1, peer=b"0")
    assert node.refusal().startswith("rate: ")
    node.ask(1, peer=b"another")
    assert node.refusal().startswith("rate: ")
    assert count_memories() <= before + SENDING_MAX
    node.frames[:2] = []
    wait_until(lambda: count_memories() < before + SENDING_MAX, "the memory of one is free")
    node.ask(1, peer=b"0")
    node.answer(b"0123456789")
    assert isinstance(node.sent[-1][1], Blobs)
    node.frames.clear()
    wait_until(lambda: count_memories() <= before, "all memory is free")
