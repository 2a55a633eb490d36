"""Pieces are fetched once, compared, and written before they count as there; or evicted."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from feeder.dataset.opened import Dataset
from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.transfers import DamagedError, Transfers
from feeder.errors import StoreError
from feeder.metrics.records import StoreRecord
from feeder.process.punched_file import punch_hole
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.web_store import WebStore, serve_store

ALL = np.arange(SAMPLES, dtype=np.int64)


@pytest.fixture
def folder(cache: DiskCache, url: str) -> Path:
    return prepare(cache, url)


@pytest.fixture
def cached(folder: Path) -> Iterator[CachedDataset]:
    with closing(CachedDataset.open(folder)) as opened:
        yield opened


@pytest.fixture
def transfers(cached: CachedDataset) -> Transfers:
    return open_transfers(cached)


def open_transfers(cached: CachedDataset) -> Transfers:
    store = Store(StoreAddress.parse(cached.url), patience_s=2.0)
    return Transfers(cached, store, StoreRecord())


def fetch_all(transfers: Transfers) -> None:
    cached = transfers.cached
    for piece in range(cached.pieces):
        assert transfers.fetch(piece, [cached.range_of(piece)])


def read_blobs(folder: Path, ids: np.ndarray) -> list[bytes]:
    with Dataset.open(folder) as dataset:
        scratch = np.empty(1 << 20, np.uint8)
        locations = dataset.find_blobs(ids, dataset.read_records(ids))
        return [bytes(dataset.read_blob(location, scratch)) for location in locations]


def test_a_whole_cached_dataset_is_the_published_one_byte_for_byte(
    transfers: Transfers, folder: Path, store: WebStore
) -> None:
    assert not transfers.cached.has(ALL)
    fetch_all(transfers)
    assert transfers.cached.has(ALL)
    for entry in transfers.cached.manifest.shards:
        assert (folder / entry.name).read_bytes() == (
            store.folder / "blobs" / entry.name
        ).read_bytes()
    assert store.doubly_sent() == []
    size_bytes = transfers.cached.layout.size_bytes
    assert size_bytes - 8 * SAMPLES <= store.sent_bytes() <= size_bytes


def test_preparing_fetches_the_first_sample_and_no_more(
    cached: CachedDataset, store: WebStore
) -> None:
    assert np.flatnonzero(cached.samples_there).tolist() == [0]
    assert cached.shards_there.tolist() == [1, 0, 0]
    assert store.sent_bytes() < 1_000_000


def test_only_what_is_missing_of_a_piece_is_fetched(transfers: Transfers, store: WebStore) -> None:
    assert transfers.fetch(0, [(3, 4), (7, 9)])
    before = len(store.requests)
    assert transfers.fetch(0, [(0, 16)])
    runs = [end - first for _, first, end in store.requests[before:]]
    assert len(runs) == 3, "samples 1-2, 4-6 and 9-15"
    assert store.doubly_sent() == []


def test_wrong_bytes_are_fetched_again_and_never_count_as_there(
    transfers: Transfers, store: WebStore, folder: Path
) -> None:
    faults = iter(["wrong", "wrong"])
    store.fault = lambda name, first, end: next(faults, "")
    assert transfers.fetch(1, [(16, 32)])
    assert read_blobs(folder, np.arange(16, 32)) == read_blobs(
        store.folder / "blobs", np.arange(16, 32)
    )
    assert transfers._record.damaged == 2


def test_bytes_that_keep_coming_wrong_are_an_error_and_the_others_stay(
    transfers: Transfers, store: WebStore
) -> None:
    store.fault = lambda name, first, end: "wrong"
    with pytest.raises(DamagedError, match=r"sample .* came 3 times with a wrong checksum"):
        transfers.fetch(1, [(16, 32)])
    assert transfers.cached.samples_there[16:32].sum() == 15
    store.fault = lambda name, first, end: ""
    assert transfers.fetch(1, [(16, 32)])


@pytest.mark.parametrize("fault", ["500", "reset", "short"])
def test_faults_that_pass_are_retried(transfers: Transfers, store: WebStore, fault: str) -> None:
    faults = iter([fault, fault])
    store.fault = lambda name, first, end: next(faults, "")
    assert transfers.fetch(2, [(32, 48)])
    assert transfers.cached.has(np.arange(32, 48))


def test_an_object_that_changed_is_an_error_of_that_name(
    cache: DiskCache, tmp_path: Path, published: Path
) -> None:
    copytree(published, tmp_path / "copy")
    with (
        serve_store(tmp_path / "copy") as store,
        closing(CachedDataset.open(prepare(cache, f"{store.url}/blobs"))) as cached,
    ):
        shard = tmp_path / "copy" / "blobs" / "shard-00000.fds"
        data = bytearray(shard.read_bytes())
        data[5000] ^= 1
        shard.write_bytes(data)
        with pytest.raises(StoreError) as caught:
            open_transfers(cached).fetch(0, [(0, 16)])
        assert caught.value.kind == "changed"


def test_a_line_that_a_full_disk_has_cut_spoils_no_other(
    transfers: Transfers, store: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    lines: list[int] = []

    def write(file: int, data: bytes, offset: int) -> int:
        if not bytes(data).strip().startswith(b"1 ") or lines:
            return pwrite(file, data, offset)
        lines.append(pwrite(file, data[:7], offset))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("feeder.disk_cache.cached.os.pwrite", write)
    with pytest.raises(OSError, match="No space left"):
        transfers.fetch(3, [(48, 64)])
    fetch_all(transfers)
    pieces = range(transfers.cached.pieces)
    assert all(transfers.evict(piece) for piece in pieces)
    store.conditions.clear()
    fetch_all(open_transfers(transfers.cached))
    assert len(store.conditions) >= len(pieces)
    assert all(store.conditions), "each names the object that its index is from"


def test_evicted_pieces_take_no_room_and_come_back(
    transfers: Transfers, cache: DiskCache, folder: Path, store: WebStore
) -> None:
    fetch_all(transfers)
    full = cache.used_bytes()
    for piece in range(transfers.cached.pieces):
        assert transfers.evict(piece)
    assert not transfers.cached.samples_there.any()
    assert cache.used_bytes() < full / 50
    fetch_all(transfers)
    assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)


def test_a_sweep_frees_what_does_not_count_as_there_and_looks_at_nothing_else(
    transfers: Transfers,
    cache: DiskCache,
    folder: Path,
    store: WebStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch_all(transfers)
    for piece in (1, 2, 5, 6):
        transfers.evict(piece)
    before = cache.used_bytes()
    transfers.fetch(2, [(32, 48)])
    transfers.cached.mark(32, 48, there=False)  # as if killed before that was written
    punched = []

    def punch(file: int, offset: int, size_bytes: int) -> bool:
        punched.append(size_bytes)
        return punch_hole(file, offset, size_bytes)

    monkeypatch.setattr("feeder.disk_cache.transfers.punch_hole", punch)
    transfers.sweep()
    assert len(punched) == 2, "the parts of piece 2, which is in two shards"
    assert cache.used_bytes() <= before + 8192
    there = np.flatnonzero(transfers.cached.samples_there)
    assert read_blobs(folder, there) == read_blobs(store.folder / "blobs", there)


def test_what_is_pinned_or_being_fetched_is_not_evicted(transfers: Transfers, folder: Path) -> None:
    fetch_all(transfers)
    with closing(CachedDataset.open(folder)) as other:
        assert other.pin(2)
        assert not transfers.evict(2)
        assert transfers.cached.has(np.arange(32, 48))
        other.unpin(2)
        assert transfers.evict(2)


def test_an_own_pin_outlasts_an_eviction(transfers: Transfers, folder: Path) -> None:
    fetch_all(transfers)
    transfers.cached.pin(2)
    assert transfers.evict(2), "windows go when nothing else can"
    with closing(CachedDataset.open(folder)) as other:
        assert not other.lock(2)
        transfers.cached.unpin(2)
        assert other.lock(2)


def test_damage_on_the_disk_is_found_and_fetched_again(
    transfers: Transfers, folder: Path, store: WebStore
) -> None:
    fetch_all(transfers)
    with (folder / "shard-00000.fds").open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    assert transfers.check(0)
    assert np.flatnonzero(transfers.cached.samples_there == 0).tolist() == [0]
    fetch_all(transfers)
    assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)


@pytest.mark.parametrize("damage", ["removed", "truncated", "index"])
def test_a_damaged_shard_is_fetched_again(
    transfers: Transfers, folder: Path, store: WebStore, damage: str
) -> None:
    fetch_all(transfers)
    path = folder / "shard-00001.fds"
    if damage == "removed":
        path.unlink()
    elif damage == "truncated":
        os.truncate(path, 1_000_000)
    else:
        with path.open("r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(bytes(900))
    assert transfers.check(3)
    assert not transfers.cached.samples_there[34:68].any()
    fetch_all(transfers)
    assert read_blobs(folder, ALL) == read_blobs(store.folder / "blobs", ALL)
