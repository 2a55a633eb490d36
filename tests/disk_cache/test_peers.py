"""Samples that other feeders hold come from there; all others, and wrong ones, from the store."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from feeder.client.core.owners import Ownership
from feeder.disk_cache import peers as peers_module
from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.messages import Want
from feeder.disk_cache.peers import Peers
from feeder.disk_cache.transfers import Transfers
from feeder.metrics.records import StoreRecord
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from feeder.wire.messages import Blobs, BlobsRequest, Refused, encode
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.peer_node import PeerNode
from tests.disk_cache.test_transfers import read_blobs
from tests.disk_cache.web_store import WebStore
from tests.support.raw_client import wait_until

LANES: Final = 8
NAMES: Final = ("node-1", "node-2", "node-3", "node-4")
OWN: Final = NAMES[0]


def lane_of(owner: str, names: Sequence[str] = NAMES) -> int:
    """Return a lane that a feeder owns."""
    ownership = Ownership(names, LANES)
    return next(lane for lane in range(LANES) if ownership.order(lane, 0)[0] == owner)


def want(lane: int, first: int = 20, end: int = 40) -> Want:
    return Want(1, "blobs", ((first, end),), whole=False, lanes=LANES, lane=lane)


class House:
    """Feeder node-1 with a cold cache, and three peers that have all samples."""

    def __init__(self, folder: Path, published: Path, stack: ExitStack, list_path: Path) -> None:
        self.cached = stack.enter_context(closing(CachedDataset.open(folder)))
        self.published = published
        self.record = StoreRecord()
        store = Store(StoreAddress.parse(self.cached.url), patience_s=2.0)
        self.transfers = Transfers(self.cached, store, self.record)
        self.content = self.cached.manifest.content
        blobs = dict(enumerate(read_blobs(published, np.arange(SAMPLES))))
        self.nodes = {
            name: stack.enter_context(PeerNode(self.content, blobs, name=name))
            for name in NAMES[1:]
        }
        self.list_path = list_path
        self.write_list()

    def write_list(self) -> None:
        lines = [f"{name} {node.endpoint}\n" for name, node in self.nodes.items()]
        self.list_path.write_text(f"{OWN} tcp://127.0.0.1:9\n" + "".join(lines))

    def follow(self, name: str = OWN) -> Peers:
        contents = frozenset([self.content])
        peers = Peers([f"file://{self.list_path}"], name, None, contents, self.record)
        wait_until(lambda: len(peers._peers) == len(NAMES), "the list is read")
        return peers

    def asked(self) -> dict[str, int]:
        """How many samples each peer was asked for; those that were."""
        return {name: len(node.asked) for name, node in self.nodes.items() if node.asked}

    def check(self, first: int = 20, end: int = 40) -> None:
        """Fetch what is missing from the store, and compare all with what was published."""
        parts: dict[int, list[tuple[int, int]]] = {}
        for sample in range(first, end):
            parts.setdefault(sample // self.cached.piece, []).append((sample, sample + 1))
        for piece, ranges in parts.items():
            assert self.transfers.fetch(piece, ranges)
        ids = np.arange(first, end)
        assert read_blobs(self.cached.folder, ids) == read_blobs(self.published, ids)


@pytest.fixture
def house(cache: DiskCache, url: str, published: Path, tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        folder = prepare(cache, url)
        yield House(folder, published / "blobs", stack, tmp_path / "feeders")


@pytest.fixture
def peers(house: House) -> Iterator[Peers]:
    with closing(house.follow()) as following:
        yield following


def test_what_the_owner_of_a_lane_has_comes_from_there(
    house: House, peers: Peers, store: WebStore
) -> None:
    before = store.sent_bytes()
    for name in house.nodes:
        first = 20 + 20 * NAMES.index(name)
        written = peers.fetch(house.transfers, want(lane_of(name), first, first + 20))
        assert written == sum(map(len, read_blobs(house.published, np.arange(first, first + 20))))
        assert house.cached.has(np.arange(first, first + 20))
    assert house.asked() == dict.fromkeys(house.nodes, 20)
    assert store.sent_bytes() - before < 20_000, "indexes"
    house.check(40, 100)
    record = house.record
    assert (record.peer_blobs, record.peer_requests) == (60, 3)
    assert record.peer_bytes > 60 * 300_000
    assert not record.peer_failures


def test_a_want_that_is_not_due_any_more_is_left_to_the_store(
    house: House, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "MAX_BLOBS", 5)
    dues = iter([True, True, False])
    assert peers.fetch(house.transfers, want(lane_of("node-2")), lambda: next(dues)) > 0
    assert house.asked() == {"node-2": 10}
    house.check()


def test_what_is_there_already_is_not_asked_for(house: House, peers: Peers) -> None:
    house.check(20, 30)
    peers.fetch(house.transfers, want(lane_of("node-2"), 20, 40))
    assert house.nodes["node-2"].asked == [*range(30, 40)]
    peers.fetch(house.transfers, want(lane_of("node-2"), 20, 40))
    assert len(house.nodes["node-2"].asked) == 10


def test_what_the_owner_lacks_is_left_to_the_store(house: House, peers: Peers) -> None:
    node = house.nodes["node-3"]
    node.blobs = {sample: blob for sample, blob in node.blobs.items() if sample % 3}
    peers.fetch(house.transfers, want(lane_of("node-3")))
    assert house.transfers.find_missing([(20, 40)]) == [*range(21, 40, 3)]
    assert house.asked() == {"node-3": 20}, "others are not likely to have it"
    house.check()


def test_an_answer_may_come_in_parts(house: House, peers: Peers) -> None:
    node = house.nodes["node-4"]
    node.answer = lambda request: node.send_blobs(
        BlobsRequest(content=request.content, sample_ids=request.sample_ids[:7])
    )
    peers.fetch(house.transfers, want(lane_of("node-4")))
    assert house.record.peer_requests == 3
    assert house.cached.has(np.arange(20, 40))


def test_wrong_bytes_are_never_written(house: House, peers: Peers) -> None:
    node = house.nodes["node-2"]
    node.blobs[25] = bytes([node.blobs[25][0] ^ 1]) + node.blobs[25][1:]
    node.blobs[26] += b"more"
    node.blobs[27] = node.blobs[28]
    peers.fetch(house.transfers, want(lane_of("node-2")))
    assert house.transfers.find_missing([(20, 40)]) == [25, 26, 27]
    assert house.record.peer_failures == {"damaged": 3}
    house.check()


def test_while_an_owner_is_away_two_others_are_asked(
    house: House, peers: Peers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers_module, "REQUEST_S", 0.3)
    lane = lane_of("node-2")
    (owner, *others) = [n for n in Ownership(NAMES, LANES).order(lane, 0) if n != OWN]
    node = house.nodes[owner]
    node.close()
    assert peers.fetch(house.transfers, want(lane)) == 0
    assert house.record.peer_failures == {"away": 1}
    wait_until(lambda: f"no answer from {node.endpoint}" in caplog.text, "why is logged")
    house.nodes[others[0]].blobs.clear()
    assert peers.fetch(house.transfers, want(lane)) > 0
    assert house.asked() == dict.fromkeys(others, 20)
    assert house.record.peer_failures == {"away": 1}, "it is not waited for again"
    with PeerNode(house.content, node.blobs, endpoint=node.endpoint) as back:
        wait_until(lambda: not peers._peers[node.endpoint].is_away, "it is back")
        assert peers.fetch(house.transfers, want(lane, 60, 61))
        assert back.asked == [60]


def test_a_peer_that_has_sent_its_share_is_asked_again_for_the_next_batch(
    house: House, peers: Peers
) -> None:
    node = house.nodes["node-3"]
    node.answer = lambda _: [encode(Refused(code="rate", message="its share"))]
    assert peers.fetch(house.transfers, want(lane_of("node-3"))) == 0
    assert house.record.peer_failures == {"rate": 1}
    node.answer = node.send_blobs
    assert peers.fetch(house.transfers, want(lane_of("node-3"))) > 0
    assert len(node.peers) == 1, "over the same connection"


@pytest.mark.parametrize(
    "frames",
    [
        [encode(Blobs(sizes=(5,) * 20)), b"short"],
        [encode(Blobs(sizes=(0,) * 21)), b""],
        [encode(Blobs(sizes=(5,)))],
        [b"FDR\x08garbage"],
    ],
    ids=["fewer bytes", "more samples", "no bytes", "no message"],
)
def test_a_peer_that_breaks_the_protocol_is_left_out(
    house: House, peers: Peers, frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    node = house.nodes["node-3"]
    node.answer = lambda _: frames
    for _ in range(2):
        peers.fetch(house.transfers, want(lane_of("node-3"), 20, 40))
    assert house.record.peer_failures == {"refused": 1}
    wait_until(lambda: f"{node.endpoint} breaks the protocol" in caplog.text, "why is logged")
    assert house.transfers.find_missing([(20, 40)]) == [], "the two others were asked"


def test_a_peer_with_another_dataset_is_reported_once_and_not_asked(
    house: House, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    node = house.nodes["node-3"]
    node.content = "e" * 32
    for _ in range(3):
        peers.fetch(house.transfers, want(lane_of("node-3"), 20, 21))
        wait_until(lambda: node.reports, "its report was read")
        wait_until(lambda: not peers._peers[node.endpoint].is_away, "it answers")
    assert node.asked == [20]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (line,) = lines
    assert f"{node.endpoint} serves none with content fingerprint {house.content}" in line


def test_owners_in_a_list_without_names_are_the_node_processes_that_report(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with PeerNode(house.content, {}, name=OWN) as own:
        house.nodes[OWN] = own
        house.list_path.write_text("\n".join(node.endpoint for node in house.nodes.values()))
        with closing(house.follow()) as peers:
            wait_until(lambda: all(p.names for p in peers._peers.values()), "all have reported")
            processes = [f"{name}/0" for name in NAMES]
            for name in NAMES:
                peers.fetch(house.transfers, want(lane_of(f"{name}/0", processes), 20, 21))
            wait_until(lambda: not house.transfers.find_missing([(20, 21)]), "it came")
            peers.fetch(house.transfers, want(lane_of("node-2/0", processes), 21, 22))
        assert own.asked == [], "it is this feeder"
        assert house.nodes["node-2"].asked[-1] == 21
        assert not caplog.records


def test_a_list_that_is_lost_and_names_that_do_not_fit_are_reported(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(house.follow("node-7")) as peers:
        text = "serve.peers: serve.name 'node-7' is not in the list: give the name that is there"
        wait_until(lambda: text in caplog.text, "its name is missing")
        house.list_path.write_text("nonsense")
        wait_until(lambda: "its last list stays valid" in caplog.text, "it cannot be read")
        assert peers.fetch(house.transfers, want(lane_of("node-2"))) > 0
    house.list_path.unlink()
    contents = frozenset([house.content])
    listed = [f"file://{house.list_path}"]
    with closing(Peers(listed, OWN, None, contents, house.record)) as peers:
        wait_until(lambda: f"{house.list_path}" in caplog.text.splitlines()[-1], "it is missing")
        assert peers.fetch(house.transfers, want(lane_of("node-2"), 50, 51)) == 0
        house.write_list()
        wait_until(lambda: peers.fetch(house.transfers, want(0, 50, 51)), "it is read again")
