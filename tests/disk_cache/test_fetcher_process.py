"""The fetcher's process answers node processes, whatever ends in between."""

import os
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from feeder.client.core.owners import Ownership
from feeder.dataset.manifest import load_manifest
from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.messages import Absent, Ahead, Behind, Forget, Here, Owned, Want
from feeder.process.channel import ChannelClosedError
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.fetching import FetcherProcess, fetching, wait_until
from tests.disk_cache.peer_node import PeerNode
from tests.disk_cache.test_transfers import read_blobs
from tests.disk_cache.web_store import WebStore

ALL = np.arange(SAMPLES, dtype=np.int64)


@pytest.fixture
def folder(cache: DiskCache, url: str) -> Path:
    return prepare(cache, url)


def test_wants_are_fetched_and_counted(cache: DiskCache, folder: Path, store: WebStore) -> None:
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        assert node.want(1, 20, 21) == Here(1)
        with closing(CachedDataset.open(folder)) as cached:
            assert np.flatnonzero(cached.samples_there).tolist() == [0, *range(16, 32)]
            assert node.want(2, 50, 51, whole=False) == Here(2)
            assert cached.samples_there.sum() == 18
            assert node.want(3, 0, SAMPLES) == Here(3)
            assert cached.has(ALL)
        assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)
        assert store.doubly_sent() == []
        record = fetcher.beat()
        while record.blobs < SAMPLES - 1:
            record = fetcher.beat()
        assert record.fetched_bytes > 0.9 * store.sent_bytes()


def test_the_record_says_what_the_host_owns_and_what_the_fetcher_costs(
    cache: DiskCache, folder: Path
) -> None:
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        whole = fetcher.beat()
        assert whole.pid == fetcher.process.pid
        assert whole.full_bytes > 0, "all, as long as nothing is known"
        node.send(Owned("blobs", ((0, 16), (32, 64))))
        wait_until(lambda: fetcher.beat().full_bytes < whole.full_bytes, "its lanes alone")
        owned = fetcher.beat()
        assert owned.full_bytes == pytest.approx(whole.full_bytes * 48 / SAMPLES, rel=0.1)
        assert owned.cpu_s >= whole.cpu_s > 0
        assert owned.expires_in_s == -1, "a web server needs no credentials"


def test_what_is_there_is_answered_without_the_store(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    with fetching(cache, {"blobs": folder}) as (_, node):
        assert node.want(1, 0, SAMPLES) == Here(1)
    store.is_away = True
    with fetching(cache, {"blobs": folder}) as (_, node):
        assert node.want(1, 0, SAMPLES) == Here(1)


def test_aheads_are_fetched_unless_they_are_left_behind(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    store.fault = lambda name, first, end: "hold" if first > 100 else ""
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        node.send(Ahead("blobs", ((32, 48), (48, 64))), Behind("blobs", ((48, 64),)))
        wait_until(lambda: fetcher.beat().queued_pieces == 1, "the other one is left out")
        store.release()
        with closing(CachedDataset.open(folder)) as cached:
            wait_until(lambda: cached.has(np.arange(32, 48)), "it is fetched ahead")
            assert not cached.samples_there[48:64].any()


def test_a_forgotten_want_gets_no_answer(cache: DiskCache, folder: Path, store: WebStore) -> None:
    store.fault = lambda name, first, end: "hold" if name.endswith("2.fds") else ""
    with fetching(cache, {"blobs": folder}) as (_, node):
        node.send(Want(1, "blobs", ((90, 91),)), Forget(1))
        assert node.want(2, 16, 17) == Here(2)
        store.release()
        assert node.want(3, 90, 91) == Here(3)


@pytest.mark.parametrize("status", ["403", "404"])
def test_what_the_store_refuses_is_absent_with_its_kind(
    cache: DiskCache, folder: Path, store: WebStore, status: str
) -> None:
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        store.fault = lambda name, first, end: status
        answer = node.want(1, 20, 21)
        assert isinstance(answer, Absent)
        kind = {"403": "denied", "404": "gone"}[status]
        assert answer.kind == kind
        assert "shard-00000.fds" in answer.message
        wait_until(lambda: fetcher.beat().failures.get(kind) == 1, "it is counted")
        store.fault = lambda name, first, end: ""
        assert node.want(2, 20, 21) == Here(2), "the next Want is tried again"


def test_damage_that_a_worker_finds_is_fetched_again(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    with fetching(cache, {"blobs": folder}) as (_, node):
        assert node.want(1, 0, SAMPLES) == Here(1)
        with (folder / "shard-00000.fds").open("r+b") as file:
            file.seek(5000)
            file.write(b"damage")
        assert node.want(2, 0, 16, doubted=True) == Here(2)
        assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)


def test_a_fetcher_killed_in_mid_transfer_leaves_a_cache_that_is_right(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    store.fault = lambda name, first, end: "hold" if first > 5_000_000 else ""
    fetcher = FetcherProcess(cache, {"blobs": folder})
    with closing(fetcher.connect()) as node:
        node.send(Want(1, "blobs", ((0, SAMPLES),)))
        wait_until(lambda: store.held >= 4, "transfers are in flight")
        fetcher.kill()
    fetcher.stop()
    with closing(CachedDataset.open(folder)) as cached:
        there = np.flatnonzero(cached.samples_there)
        assert not cached.is_used_by_others()
    assert 0 < len(there) < SAMPLES
    assert read_blobs(folder, there) == read_blobs(store.folder / "blobs", there)
    store.release()
    wait_until(lambda: store.held == 0, "the server has given up what was killed")
    store.requests.clear()
    with fetching(cache, {"blobs": folder}) as (_, node):
        assert node.want(1, 0, SAMPLES) == Here(1)
    assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)
    missing = sum(len(blob) for blob in read_blobs(folder, np.setdiff1d(ALL, there)))
    index_bytes = 3 * 16_000
    assert store.sent_bytes() <= missing + 8 * SAMPLES + index_bytes, "nothing is fetched twice"
    assert [path for path in cache.root.rglob("*") if path.suffix == ".tmp"] == []


def test_two_fetchers_on_one_folder_share_the_work(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    with (
        fetching(cache, {"blobs": folder}) as (_, node),
        fetching(cache, {"blobs": folder}) as (_, other),
    ):
        node.send(Want(1, "blobs", ((0, SAMPLES),)))
        other.send(Want(1, "blobs", ((0, SAMPLES),)))
        assert node.receive() == other.receive() == Here(1)
    assert store.doubly_sent() == []
    assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)


def test_a_cache_smaller_than_the_dataset_keeps_to_its_budget(
    cache: DiskCache, folder: Path
) -> None:
    budget = 20_000_000
    with fetching(cache, {"blobs": folder}, budget) as (fetcher, node):
        for number, first in enumerate(range(0, SAMPLES, 16), 1):
            assert node.want(number, first, first + 1) == Here(number)
        wait_until(lambda: fetcher.beat().evicted_pieces > 0, "some were evicted")
        wait_until(lambda: fetcher.beat().used_bytes <= budget + 7_000_000, "within the budget")
    assert cache.used_bytes() <= budget + 7_000_000
    with closing(CachedDataset.open(folder)) as cached:
        assert cached.samples_there[0], "with it, a start does not need the store"


def test_a_node_process_that_vanishes_takes_its_wants_along(
    cache: DiskCache, folder: Path, store: WebStore
) -> None:
    store.fault = lambda name, first, end: "hold" if name.endswith("1.fds") else ""
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        with closing(fetcher.connect()) as other:
            other.send(Want(1, "blobs", ((0, SAMPLES),)), Ahead("blobs", ((0, SAMPLES),)))
            wait_until(lambda: fetcher.beat().waiting == 1, "it waits")
        wait_until(lambda: fetcher.beat().waiting == 0, "it is forgotten")
        assert fetcher.beat().queued_pieces == 0
        assert node.want(1, 0, 1) == Here(1)
        store.release()
        assert node.want(2, 40, 41) == Here(2)


def test_a_connection_that_breaks_the_protocol_is_closed_and_the_others_stay(
    cache: DiskCache, folder: Path
) -> None:
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        for wrong in (
            Want(1, "others", ((0, 1),)),
            Owned("blobs", ((0, SAMPLES + 1),)),
            Want(1, "blobs", ((0, SAMPLES),) * 17),
        ):
            with closing(fetcher.connect()) as bad:
                bad.send(wrong)
                with pytest.raises(ChannelClosedError):
                    bad.receive()
        assert node.want(1, 20, 21) == Here(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_another_user_of_the_host_gets_no_connection(cache: DiskCache, folder: Path) -> None:
    with fetching(cache, {"blobs": folder}) as (fetcher, node):
        code = (
            "import os, socket as s; os.setuid(65534); c = s.socket(s.AF_UNIX, s.SOCK_SEQPACKET); "
            f"c.settimeout(60); c.connect({fetcher.address!r}); print(c.recv(1))"
        )
        other = [sys.executable, "-I", "-S", "-c", code]
        assert subprocess.check_output(other) == b"b''\n"
        assert node.want(1, 20, 21) == Here(1)


def test_a_fetcher_that_cannot_start_says_why(cache: DiskCache, tmp_path: Path) -> None:
    fetcher = FetcherProcess(cache, {"blobs": tmp_path})
    failure = fetcher.failure()
    assert failure.error == "DatasetError"
    assert "origin.json cannot be read" in failure.message
    fetcher.control.close()
    assert fetcher.process.wait(10) == 3
    assert fetcher.process.stderr is not None
    fetcher.process.stderr.close()
    fetcher._listener.close()


def test_peers_are_asked_before_the_store_for_batches_of_their_lanes(
    cache: DiskCache, folder: Path, store: WebStore, tmp_path: Path
) -> None:
    blobs = dict(enumerate(read_blobs(store.folder / "blobs", ALL)))
    missing = blobs.pop(41)
    content = load_manifest(folder).content
    feeders = tmp_path / "feeders"
    with PeerNode(content, blobs, name="other") as peer, closing(CachedDataset.open(folder)) as own:
        feeders.write_text(f"other {peer.endpoint}\nown tcp://127.0.0.1:9\n")
        lane = next(n for n in range(8) if Ownership(("other", "own"), 8).order(n, 0)[0] == "other")
        listed = (f"file://{feeders}",)
        with fetching(cache, {"blobs": folder}, peers=listed) as (fetcher, node):
            number = count(1)

            def ask(*ranges: tuple[int, int]) -> list[int]:
                """Want samples of the peer's lane; return those that it was asked for."""
                before = len(peer.asked)
                node.send(Want(next(number), "blobs", ranges, False, 8, lane))
                assert isinstance(node.receive(), Here)
                return peer.asked[before:]

            fresh = ((sample, sample + 1) for sample in range(1, 40))
            wait_until(lambda: ask(next(fresh)), "the list is read")
            before = store.sent_bytes()
            assert ask((40, 42), (60, 62), (90, 91)) == [40, 41, 60, 61, 90]
            from_store = store.sent_bytes() - before - len(missing)
            assert 0 < from_store < 20_000, "indexes"
            assert ask((40, 42)) == []
            assert own.has(np.array([40, 41, 60, 61, 90]))
            assert node.want(100, 70, 72, whole=False) == Here(100)
            assert len(peer.asked) == len({*peer.asked}), "own batches are read from the store"
            assert not {70, 71} & {*peer.asked}
            record = fetcher.beat()
            while record.peer_blobs < 5:
                record = fetcher.beat()
            peer.answer = lambda _: None
            node.send(Want(101, "blobs", ((80, 81),), False, 8, lane), Forget(101))
            assert node.want(102, 85, 86, whole=False) == Here(102)
            node.send(Want(103, "blobs", ((81, 82),), False, 8, lane))
            assert node.receive() == Here(103), "the store has it, though the peer is silent"
    assert read_blobs(folder, np.array([40, 41, 60, 61, 81, 90])) == read_blobs(
        store.folder / "blobs", np.array([40, 41, 60, 61, 81, 90])
    )
