"""What a node process asks a fetcher for, and what it keeps from being evicted."""

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.selection import Selection
from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.messages import (
    Absent,
    Ahead,
    Behind,
    FetcherToNode,
    Forget,
    Here,
    NodeToFetcher,
    Owned,
    Serving,
    Want,
)
from feeder.disk_cache.ranges import find_runs
from feeder.disk_cache.transfers import Transfers
from feeder.metrics.records import StoreRecord
from feeder.node.fetches import PATIENCE_S, Fetches
from feeder.node.polling import PollSet
from feeder.node.selected_parts import SelectedParts
from feeder.process.channel import Channel
from feeder.session.events import SamplesFetched
from feeder.session.state import PendingBatch, PendingChunk, Session
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from tests.dataset.selections import member, selection_bytes
from tests.support.session_shell import BATCH, make_session

WAIT_S = 30.0


class FakeFetcher:
    """Listens where a fetcher would, and keeps what it is told."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("")  # an abstract address that the kernel chooses
        self.listener.listen()
        self.listener.settimeout(WAIT_S)
        self.channel: Channel[FetcherToNode, NodeToFetcher] | None = None

    @property
    def address(self) -> bytes:
        return bytes(self.listener.getsockname())

    def accept(self) -> None:
        end, _ = self.listener.accept()
        self.channel = Channel(end, NodeToFetcher)
        self.send(Serving())

    def told(self) -> list[NodeToFetcher]:
        """All messages that have come."""
        assert self.channel is not None
        self.channel.set_timeout(0)
        messages = []
        while (message := self.channel.receive()) is not None:
            messages.append(message)
        return messages

    def wants(self) -> list[Want]:
        return [message for message in self.told() if isinstance(message, Want)]

    def send(self, message: FetcherToNode) -> None:
        assert self.channel is not None
        self.channel.send(message)

    def die(self) -> None:
        if self.channel is not None:
            self.channel.close()


class Node:
    """A node process's fetches, with sessions on the dataset "d", or on a selection of that name
    with ``ids`` of the members "m", "n", …, all of them the dataset in the same folder."""

    def __init__(self, folder: Path, fetcher: FakeFetcher, *ids: list[int]) -> None:
        self.poll_set = PollSet()
        names = ("m", "n", "o")[: len(ids)] or ("d",)
        cached = {name: CachedDataset.open(folder) for name in names}
        parts = None
        if ids:
            members = [member(number, 101) for number in range(len(ids))]
            self.selection = Selection.parse(memoryview(selection_bytes(ids, members)), "FILE")
            parts = SelectedParts({"d": self.selection}, {"d": names}, cached)
        self.fetches = Fetches(cached, fetcher.address, self.poll_set, parts)
        self.poll_set.timed.append(self.fetches)
        self.answers: list[SamplesFetched] = []
        self.fetches.report = lambda answers, _: self.answers.extend(answers)
        self.session = make_session(1, "", window=4)
        self.turn()
        fetcher.accept()
        self.turn()
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        self.poll_set.run(0.0)

    def wait(self, answers: int) -> list[SamplesFetched]:
        by_s = time.monotonic() + WAIT_S
        while len(self.answers) < answers:
            assert time.monotonic() < by_s, "no answer"
            self.poll_set.run(time.monotonic() + 0.1)
        return self.answers

    def begin(
        self, index: int, *, is_unowned: bool = False, session: Session | None = None
    ) -> tuple[PendingBatch, list[SamplesFetched]]:
        batch = PendingBatch(session or self.session, 0, index, BATCH, is_unowned=is_unowned)
        batch.fetch = next(self._numbers)
        return batch, self.fetches.begin(batch)

    def samples(self, index: int) -> np.ndarray:
        return self.session.plan.samples(index)


@pytest.fixture
def folder(cache: DiskCache, url: str) -> Path:
    return prepare(cache, url)


@pytest.fixture
def other(folder: Path) -> Iterator[CachedDataset]:
    """The dataset as another process has it open, which fetches and evicts."""
    with closing(CachedDataset.open(folder)) as opened:
        yield opened


@pytest.fixture
def fetcher() -> Iterator[FakeFetcher]:
    made = FakeFetcher()
    yield made
    made.die()
    made.listener.close()


@pytest.fixture
def node(folder: Path, fetcher: FakeFetcher) -> Iterator[Node]:
    made = Node(folder, fetcher)
    yield made
    made.fetches.close()


def fetch(other: CachedDataset, ids: np.ndarray) -> None:
    transfers = Transfers(other, Store(StoreAddress.parse(other.url)), StoreRecord())
    for piece in other.pieces_of(ids).tolist():
        assert transfers.fetch(piece, [other.range_of(piece)])


def pinned(other: CachedDataset, ids: np.ndarray) -> set[bool]:
    """Whether the pieces of samples are pinned, each."""
    pieces = other.pieces_of(ids).tolist()
    answers = set()
    for piece in pieces:
        locked = other.lock(piece)
        answers.add(not locked)
        if locked:
            other.unlock(piece)
    return answers


def test_a_batch_that_is_there_is_answered_at_once_and_pinned_until_it_is_let_go(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    ids = node.samples(0)
    fetch(other, ids)
    batch, answers = node.begin(0)
    assert answers == [SamplesFetched(batch.fetch)]
    assert not fetcher.wants()
    assert pinned(other, ids) == {True}
    second, _ = node.begin(0, session=make_session(2, ""))
    node.fetches.let_go(batch.fetch)
    assert pinned(other, ids) == {True}, "another batch has them"
    node.fetches.let_go(second.fetch)
    assert pinned(other, ids) == {False}


def test_a_batch_waits_for_the_fetcher(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    ids = node.samples(3)
    batch, answers = node.begin(3)
    assert not answers
    assert node.fetches.waiting == 1
    (want,) = fetcher.wants()
    assert want.number == batch.fetch
    fetcher.send(Here(batch.fetch))  # evicted again before it could be pinned
    while not (again := fetcher.wants()):
        node.turn()
    assert [want.ranges for want in again] == [want.ranges]
    fetch(other, ids)
    fetcher.send(Here(batch.fetch))
    assert node.wait(1) == [SamplesFetched(batch.fetch)]
    assert pinned(other, ids) == {True}
    assert node.fetches.waiting == 0


def test_a_small_dataset_is_fetched_by_samples_while_its_lane_follows(
    node: Node, fetcher: FakeFetcher
) -> None:
    node.begin(2)
    told = fetcher.told()
    (want,) = (message for message in told if isinstance(message, Want))
    assert not want.whole
    assert want.ranges == find_runs(np.unique(node.samples(2)))
    lane = (0, node.session.plan.layout.samples)
    assert Ahead("d", (lane,)) in told
    node.begin(3)
    node.begin(4)
    assert Owned("d", (lane,)) in fetcher.told()


def test_a_batch_of_its_own_lanes_is_fetched_by_pieces(node: Node, fetcher: FakeFetcher) -> None:
    session = make_session(2, "", window=4, shuffle=False)
    node.begin(1, session=session)
    (want,) = fetcher.wants()
    assert want.whole
    assert want.ranges == find_runs(np.unique(session.plan.samples(1)))


def test_a_batch_of_another_feeder_is_fetched_by_samples_and_nothing_follows(
    node: Node, fetcher: FakeFetcher
) -> None:
    fetcher.told()
    node.begin(2, is_unowned=True)
    (want,) = fetcher.told()
    assert isinstance(want, Want)
    assert not want.whole
    assert want.ranges == find_runs(np.unique(node.samples(2)))
    assert (want.lanes, want.lane, want.index) == (1, 0, 2)
    node.begin(3)
    assert [want.lanes for want in fetcher.wants()] == [0], "its own are not asked of peers"


def test_why_samples_cannot_be_had_is_passed_on(node: Node, fetcher: FakeFetcher) -> None:
    batch, _ = node.begin(1)
    fetcher.send(Absent(batch.fetch, "denied", "s3://b/d: access denied"))
    assert node.wait(1) == [SamplesFetched(batch.fetch, "s3://b/d: access denied")]


def test_a_fetcher_that_was_replaced_is_asked_again(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    batch, _ = node.begin(4)
    before = fetcher.told()
    fetcher.die()
    node.turn()
    node.fetches.run_due(time.monotonic())  # it connects again
    fetcher.accept()
    node.turn()
    after = fetcher.told()
    assert [m for m in after if isinstance(m, Want)] == [m for m in before if isinstance(m, Want)]
    assert any(isinstance(message, Ahead) for message in after)
    fetch(other, node.samples(4))
    fetcher.send(Here(batch.fetch))
    assert node.wait(1) == [SamplesFetched(batch.fetch)]


def test_a_burst_that_a_fetcher_has_not_read_yet_waits_and_nothing_is_lost(
    node: Node, fetcher: FakeFetcher
) -> None:
    bursts = 400  # some MB, more than a socket's buffer holds
    session = make_session(2, "", window=4, batch_size=50)
    begun = [node.begin(index % 2, is_unowned=True, session=session)[0] for index in range(bursts)]
    wants: list[Want] = []
    by_s = time.monotonic() + WAIT_S
    while len(wants) < bursts:
        assert time.monotonic() < by_s
        node.turn()
        wants += fetcher.wants()
    assert [want.number for want in wants] == [batch.fetch for batch in begun]
    assert all(want.ranges for want in wants)


def test_what_is_missing_of_others_does_not_fail_a_batch(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    batch, _ = node.begin(3)
    fetch(other, node.samples(3))
    fetcher.send(Absent(batch.fetch, "damaged", "another sample of a piece is damaged"))
    assert node.wait(1) == [SamplesFetched(batch.fetch)]


def test_what_is_let_go_is_forgotten(node: Node, fetcher: FakeFetcher) -> None:
    batch, _ = node.begin(1)
    node.fetches.let_go(batch.fetch)
    assert Forget(batch.fetch) in fetcher.told()
    node.begin(2)
    fetcher.told()
    node.fetches.end_session(node.session.number)
    told = fetcher.told()
    assert Owned("d", ()) in told
    assert any(isinstance(message, Forget) for message in told)
    assert node.fetches.waiting == 0


def test_a_doubted_chunk_is_checked_and_keeps_its_pins(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    ids = node.samples(0)
    fetch(other, ids)
    batch, _ = node.begin(0)
    fetcher.told()
    node.fetches.check(77, PendingChunk(batch, 2, 3))
    told = fetcher.told()
    (want,) = [message for message in told if isinstance(message, Want)]
    assert want.doubted
    assert sum(end - first for first, end in want.ranges) == 3
    fetcher.send(Here(77))
    assert node.wait(1) == [SamplesFetched(77)]
    assert pinned(other, ids) == {True}
    node.fetches.check(78, PendingChunk(batch, 2, 3))
    fetcher.send(Absent(78, "disk-failing", "the disk fails"))
    assert node.wait(2)[-1] == SamplesFetched(78, "the disk fails"), "although all count as there"


def test_what_is_fetched_meanwhile_survives_the_fetchers_absence(
    folder: Path, other: CachedDataset
) -> None:
    fetcher = FakeFetcher()
    node = Node(folder, fetcher)
    fetcher.die()
    fetcher.listener.close()
    node.turn()
    fetch(other, node.samples(5))
    _, answers = node.begin(5)
    assert answers, "a warm cache needs no fetcher"
    node.fetches.close()


def test_what_is_missing_fails_once_no_fetcher_has_run_for_long(
    node: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    batch, _ = node.begin(3)
    fetcher.die()
    node.turn()  # and connects again: the supervisor listens, too, while there is no fetcher
    gone_s = time.monotonic() + PATIENCE_S
    node.fetches.run_due(gone_s - 1)
    assert not node.answers
    assert node.fetches.deadline_s <= gone_s
    node.fetches.run_due(gone_s)
    (answer,) = node.answers
    assert answer.fetch == batch.fetch
    assert "the fetcher has not been running" in answer.problem
    node.begin(4)
    node.fetches.run_due(gone_s)
    assert len(node.answers) == 2, "there is still none"
    fetcher.accept()
    node.turn()
    last, _ = node.begin(5)
    node.fetches.run_due(gone_s)
    assert len(node.answers) == 2
    fetch(other, node.samples(5))
    fetcher.send(Here(last.fetch))
    assert node.wait(3)[-1] == SamplesFetched(last.fetch)


def test_nothing_is_kept_for_a_fetcher_that_does_not_run(node: Node, fetcher: FakeFetcher) -> None:
    fetcher.die()
    node.turn()
    node.fetches.run_due(time.monotonic())  # it connects, as the supervisor listens
    for index in range(3):
        batch, _ = node.begin(index)
        node.fetches.let_go(batch.fetch)
    last, _ = node.begin(3)
    node.turn()
    fetcher.accept()
    assert fetcher.told() == [], "it may not come for hours"
    node.turn()
    told = fetcher.told()
    assert [m.number for m in told if isinstance(m, Want)] == [last.fetch]
    assert not any(isinstance(message, Forget | Behind) for message in told)
    assert any(isinstance(message, Ahead) for message in told)


@pytest.fixture
def selected(folder: Path, fetcher: FakeFetcher) -> Iterator[Node]:
    """A selection of 51 samples of one dataset and 50 of another."""
    made = Node(folder, fetcher, list(range(0, 101, 2)), list(range(50)))
    yield made
    made.fetches.close()


def own_ids(node: Node, index: int) -> list[np.ndarray]:
    return [group.sample_ids for group in node.selection.locate(node.samples(index))]


def test_a_batch_of_a_selection_waits_for_the_samples_of_all_its_datasets(
    selected: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    batch, answers = selected.begin(3)
    ids = own_ids(selected, 3)
    assert not answers
    first, second = fetcher.wants()
    assert (first.dataset, second.dataset) == ("m", "n")
    assert first.number == batch.fetch != second.number
    for want, own in zip((first, second), ids, strict=True):
        assert want.ranges == find_runs(np.unique(own))
    fetch(other, np.concatenate(ids))
    fetcher.send(Here(second.number))
    while selected.fetches.waiting == 2:
        selected.turn()
    assert not selected.answers, "the other one's are still missing"
    fetcher.send(Here(first.number))
    assert selected.wait(1) == [SamplesFetched(batch.fetch)]
    assert pinned(other, np.concatenate(ids)) == {True}
    assert selected.begin(3)[1], "they are there"
    selected.fetches.end_session(1)
    assert pinned(other, np.concatenate(ids)) == {False}
    assert selected.fetches.waiting == 0


def test_one_dataset_whose_samples_cannot_be_had_fails_the_batch_once(
    selected: Node, fetcher: FakeFetcher
) -> None:
    batch, _ = selected.begin(1)
    first, second = fetcher.wants()
    fetcher.send(Absent(second.number, "denied", "no"))
    assert selected.wait(1) == [SamplesFetched(batch.fetch, "no")]
    assert selected.fetches.waiting == 0
    while not (told := fetcher.told()):
        selected.turn()
    assert told == [Forget(first.number)]
    fetcher.send(Here(first.number))  # which was on its way
    selected.fetches.let_go(batch.fetch)
    selected.turn()
    assert len(selected.answers) == 1


def test_doubted_samples_of_a_selection_are_checked_in_all_its_datasets(
    selected: Node, fetcher: FakeFetcher, other: CachedDataset
) -> None:
    fetch(other, np.arange(101))
    batch, _ = selected.begin(2)
    fetcher.told()
    chunk = PendingChunk(batch, 0, BATCH)
    assert selected.fetches.check(77, chunk) == []
    wants = fetcher.wants()
    assert [(want.dataset, want.doubted) for want in wants] == [("m", True), ("n", True)]
    for want in wants:
        fetcher.send(Here(want.number))
    assert selected.wait(1) == [SamplesFetched(77)]
    selected.fetches.let_go(batch.fetch)
    assert pinned(other, selected.samples(2)) == {False}


def test_hints_of_a_selection_name_samples_of_its_datasets(
    selected: Node, fetcher: FakeFetcher
) -> None:
    selected.begin(0)
    ahead = [message for message in fetcher.told() if isinstance(message, Ahead)]
    assert ahead == [Ahead("m", ((0, 101),)), Ahead("n", ((0, 50),))]
    selected.begin(1)
    selected.begin(2)
    owned = [message for message in fetcher.told() if isinstance(message, Owned)]
    assert owned == [Owned("m", ((0, 101),)), Owned("n", ((0, 50),))]


def test_sparse_samples_are_fetched_alone_and_nothing_follows(
    folder: Path, fetcher: FakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces have 16 samples: one is 1 in 16, which is not under 1 in 20."""
    monkeypatch.setattr("feeder.node.selected_parts._SPARSE", 5)  # of 16 samples
    sparse, dense = list(range(3, 101, 16)), list(range(94))
    session = make_session(1, "", window=4, shuffle=False)
    node = Node(folder, fetcher, sparse, dense)
    with closing(node.fetches) as fetches:
        has_both = (len(node.selection.locate(session.plan.samples(n))) == 2 for n in range(9))
        batch = PendingBatch(session, 0, [*has_both].index(True), BATCH)
        batch.fetch = 1
        fetches.begin(batch)
        told = fetcher.told()
    wants = [message for message in told if isinstance(message, Want)]
    assert [(want.dataset, want.whole) for want in wants] == [("m", False), ("n", True)]
    assert {message.dataset for message in told if isinstance(message, Ahead)} == {"n"}
