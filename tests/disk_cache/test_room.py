"""Room is made among all datasets of the folder, those of other daemons included."""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.eviction import Holding
from feeder.disk_cache.fetcher import Fetcher
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.messages import Ahead
from feeder.disk_cache.room import Evictor
from feeder.disk_cache.transfers import Transfers
from feeder.metrics.records import StoreRecord
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.fetching import DEADLINE_S
from tests.disk_cache.test_transfers import fetch_all, open_transfers
from tests.disk_cache.web_store import serve_store

ALL_OF_IT = 1 << 40


@pytest.fixture
def urls(published: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two datasets."""
    for name in ("own", "other"):
        copytree(published / "blobs", tmp_path / "published" / name)
    with serve_store(tmp_path / "published") as store:
        yield f"{store.url}/own", f"{store.url}/other"


@pytest.fixture
def own(cache: DiskCache, urls: tuple[str, str]) -> Iterator[Transfers]:
    with closing(CachedDataset.open(prepare(cache, urls[0]))) as cached:
        transfers = open_transfers(cached)
        fetch_all(transfers)
        yield transfers


@pytest.fixture
def other(cache: DiskCache, urls: tuple[str, str]) -> Path:
    """The folder of a dataset that was fetched long ago, and that nothing has open."""
    folder = prepare(cache, urls[1])
    with closing(CachedDataset.open(folder)) as cached:
        fetch_all(open_transfers(cached))
    os.utime(folder / "origin.json", (0, 0))
    return folder


def hold(transfers: Transfers, *held: int) -> tuple[Transfers, Holding]:
    flags = np.isin(np.arange(transfers.cached.pieces), held)
    return transfers, Holding(there_bytes=transfers.there_bytes(), held=flags)


def test_what_no_daemon_serves_goes_first_and_then_its_folder(
    cache: DiskCache, own: Transfers, other: Path
) -> None:
    evictor = Evictor(cache, 70_000_000)
    used_bytes, budget_bytes = evictor.measure()
    first = evictor.evict([hold(own)], used_bytes - budget_bytes, with_windows=False)
    assert first.is_enough
    assert own.cached.count_whole() == own.cached.pieces
    assert other.exists()
    assert first.usage.used_bytes < budget_bytes
    while other.exists():
        assert evictor.evict([hold(own)], 1, with_windows=False).pieces > 0
    assert own.cached.count_whole() == own.cached.pieces


def test_what_another_daemon_has_pinned_stays(
    cache: DiskCache, own: Transfers, other: Path
) -> None:
    with closing(CachedDataset.open(other)) as theirs:
        assert theirs.pin(3)
        eviction = Evictor(cache, 1).evict([hold(own, 2)], ALL_OF_IT, with_windows=False)
        assert not eviction.is_enough
        assert np.flatnonzero(own.cached.counts_there()).tolist() == [2], "it is held"
        assert np.flatnonzero(theirs.counts_there()).tolist() == [0, 3], "a start needs piece 0"
    assert other.exists()


def test_what_was_just_prepared_is_left_to_who_will_open_it(
    cache: DiskCache, own: Transfers, urls: tuple[str, str]
) -> None:
    folder = prepare(cache, urls[1])
    Evictor(cache, 1).evict([hold(own)], ALL_OF_IT, with_windows=False)
    with closing(CachedDataset.open(folder)) as cached:
        assert cached.samples_there[0]


def test_a_damaged_dataset_of_others_is_no_obstacle(
    cache: DiskCache, own: Transfers, other: Path
) -> None:
    (other / "presence").write_bytes(b"")
    assert Evictor(cache, 1).evict([hold(own)], 1_000_000, with_windows=False).is_enough


def test_use_counts_what_is_on_disk_not_the_size_of_files(cache: DiskCache, own: Transfers) -> None:
    full = Evictor(cache, 1).measure().used_bytes
    assert full >= own.cached.layout.size_bytes
    assert own.evict(1)
    assert 5_000_000 < full - Evictor(cache, 1).measure().used_bytes < 8_000_000
    assert Transfers(own.cached, None, StoreRecord()).there_bytes()[1] == 0


def test_while_the_room_is_measured_fetching_goes_on(
    cache: DiskCache, urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, loop, may_end = os.statvfs, threading.current_thread(), threading.Event()

    def look_slowly(path: Path) -> os.statvfs_result:
        if threading.current_thread() is not loop:
            assert may_end.wait(DEADLINE_S)
        return look(path)

    monkeypatch.setattr(os, "statvfs", look_slowly)
    with closing(Fetcher(cache, {"own": prepare(cache, urls[0])})) as fetcher:
        cached = fetcher.cached("own")
        fetcher.handle(0, Ahead("own", ((0, SAMPLES),)))
        fetcher.run()
        while not fetcher.is_idle:
            assert select.select([fetcher.wake_fd], [], [], DEADLINE_S)[0], "nothing is fetched"
            fetcher.run()
        assert cached.count_whole() == cached.pieces
        may_end.set()
