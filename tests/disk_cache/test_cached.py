"""A cached dataset is opened, pinned and locked by several processes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from feeder.disk_cache.cached import FETCHING, CachedDataset, is_cached
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.errors import DatasetError
from feeder.process.child import child_environment
from tests.disk_cache.conftest import SAMPLES

_CHILD = """
import sys
from pathlib import Path
from feeder.disk_cache.cached import CachedDataset
cached = CachedDataset.open(Path(sys.argv[1]))
print(cached.{call}, flush=True)
sys.stdin.read()
"""


@contextmanager
def process_that(call: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened the dataset and returned from a call; killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(call=call), str(folder)],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


@pytest.fixture
def folder(cache: DiskCache, url: str) -> Path:
    return prepare(cache, url)


@pytest.fixture
def cached(folder: Path) -> Iterator[CachedDataset]:
    with closing(CachedDataset.open(folder)) as opened:
        yield opened


def test_pieces_cover_the_samples_once(cached: CachedDataset) -> None:
    assert (cached.piece, cached.pieces) == (16, 7)
    assert cached.pieces_of(np.array([100, 3, 15, 16, 3])).tolist() == [0, 1, 6]
    ranges = cached.ranges_of(cached.pieces_of(np.arange(SAMPLES)))
    assert all(type(number) is int for part in ranges for number in part), "msgspec takes no other"
    assert ranges[-1] == (96, SAMPLES)
    assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]


def test_presence_is_seen_by_all_and_outlives_them(folder: Path, cached: CachedDataset) -> None:
    with closing(CachedDataset.open(folder)) as other:
        cached.mark(30, 35, there=True)
        assert other.has(np.arange(30, 35))
        assert not other.has(np.arange(30, 36))
        other.mark(31, 32, there=False)
        assert not cached.has(np.array([31]))
    with closing(CachedDataset.open(folder)) as again:
        assert np.flatnonzero(again.samples_there).tolist() == [0, 30, 32, 33, 34]


def test_a_forgotten_shard_takes_its_samples_along(cached: CachedDataset) -> None:
    cached.mark(0, SAMPLES, there=True)
    cached.mark_shard(1, there=False)
    assert np.flatnonzero(cached.samples_there == 0).tolist() == [*range(34, 68)]


def test_pins_of_another_process_end_with_it_however_it_ends(
    folder: Path, cached: CachedDataset
) -> None:
    with process_that("pin(3)", folder) as process:
        assert cached.pin(3), "pins are shared"
        assert not cached.lock(3)
        assert cached.lock(2)
        assert cached.is_used_by_others()
        process.kill()
        process.wait()
        assert cached.lock(3)
        assert not cached.is_used_by_others()


def test_what_another_process_locks_can_be_neither_pinned_nor_fetched(
    folder: Path, cached: CachedDataset
) -> None:
    with process_that("lock(3)", folder):
        assert not cached.pin(3)
        assert cached.lock(FETCHING + 3)
    with process_that(f"lock({FETCHING + 4})", folder):
        assert cached.pin(4)
        assert not cached.lock(FETCHING + 4)


def test_closing_ends_pins(folder: Path, cached: CachedDataset) -> None:
    other = CachedDataset.open(folder)
    assert other.pin(1)
    other.close()
    other.close()
    assert cached.lock(1)


def test_a_folder_without_an_origin_is_none(folder: Path) -> None:
    assert is_cached(folder)
    (folder / "origin.json").unlink()
    assert not is_cached(folder)
    with pytest.raises(DatasetError, match=r"origin\.json cannot be read"):
        CachedDataset.open(folder)


def test_a_truncated_presence_is_an_error_with_a_remedy(folder: Path) -> None:
    (folder / "presence").write_bytes(bytes(50))
    with pytest.raises(DatasetError, match=r"damaged \(50 of 104 bytes\): start again"):
        CachedDataset.open(folder)
