"""A cache disk that is full, read-only or failing: a named answer, and the fetcher goes on."""

import errno
import os
import select
import subprocess
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from feeder.disk_cache.cached import FETCHING, INDEXING, CachedDataset
from feeder.disk_cache.fetcher import Fetcher
from feeder.disk_cache.folder import DiskCache, prepare
from feeder.disk_cache.messages import Absent, Here, Want
from feeder.errors import ResourceError
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.fetching import DEADLINE_S, fetching, wait_until
from tests.disk_cache.web_store import WebStore
from tests.support.hanging_fs import small_disk

BUDGET = 1 << 30


def test_a_full_disk_is_made_room_on_and_a_batch_too_large_for_it_is_absent(
    tmp_path: Path, url: str
) -> None:
    with small_disk(tmp_path / "small", "size=21m") as disk:
        cache = DiskCache.open(disk)
        folder = prepare(cache, url)
        with fetching(cache, {"blobs": folder}, BUDGET) as (fetcher, node):
            for number, first in enumerate(range(0, SAMPLES, 16), 1):
                assert node.want(number, first, first + 1) == Here(number)
            wait_until(lambda: fetcher.beat().evicted_pieces > 0, "some are evicted")
            answer = node.want(100, 0, SAMPLES)
            assert isinstance(answer, Absent)
            assert answer.kind == "disk-full"
            assert "no room left" in answer.message
            assert node.want(101, 20, 21) == Here(101)


def test_auto_leaves_a_tenth_of_the_disk_free(tmp_path: Path, url: str) -> None:
    with small_disk(tmp_path / "small", "size=30m") as disk:
        cache = DiskCache.open(disk)
        folder = prepare(cache, url)
        with fetching(cache, {"blobs": folder}) as (fetcher, node):
            for number, first in enumerate(range(0, SAMPLES, 16), 1):
                assert node.want(number, first, first + 1) == Here(number)
            wait_until(lambda: fetcher.beat().evicted_pieces > 0, "some are evicted")
            wait_until(
                lambda: os.statvfs(disk).f_bavail * 4096 >= 3 * 2**20 - 8192, "a tenth is free"
            )


def test_a_read_only_disk_serves_what_it_has(tmp_path: Path, url: str) -> None:
    with small_disk(tmp_path / "small", "size=60m") as disk:
        cache = DiskCache.open(disk)
        folder = prepare(cache, url)
        with fetching(cache, {"blobs": folder}, BUDGET) as (_, node):
            assert node.want(1, 0, 32) == Here(1)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        warnings: list[str] = []
        assert prepare(DiskCache.open(disk), url, report=warnings.append) == folder
        assert "not writable" in warnings[0]
        with fetching(cache, {"blobs": folder}, BUDGET) as (_, node):
            assert node.want(1, 0, 32) == Here(1)
            answer = node.want(2, 40, 41)
            assert isinstance(answer, Absent)
            assert answer.kind == "disk-read-only"
            with closing(CachedDataset.open(folder)) as cached:
                assert cached.pin(0)


def test_a_new_cache_on_a_read_only_disk_is_an_error_in_a_line(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", "size=1m,ro") as disk,
        pytest.raises(ResourceError, match=r"not writable .*cache\.disk_path"),
    ):
        DiskCache.open(disk)


def test_a_disk_that_fails_is_named_and_tried_again(
    cache: DiskCache, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(cache, url)
    is_failing = True

    def fail(file: int, data: memoryview, offset: int) -> int:
        if is_failing and len(data) > 100_000:
            raise OSError(errno.EIO, "Input/output error")
        return pwrite(file, data, offset)

    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", fail)
    with closing(Fetcher(cache, {"blobs": folder}, budget_bytes=BUDGET)) as fetcher:
        answer = answer_of(fetcher, Want(1, "blobs", ((20, 21),)))
        assert isinstance(answer, Absent)
        assert answer.kind == "disk-failing"
        is_failing = False
        assert answer_of(fetcher, Want(2, "blobs", ((20, 21),))) == Here(2)


def answer_of(fetcher: Fetcher, want: Want) -> Here | Absent:
    fetcher.handle(1, want)
    poll = select.poll()
    poll.register(fetcher.wake_fd, select.POLLIN)
    end_s = time.monotonic() + DEADLINE_S
    while not (answers := fetcher.run()):
        poll.poll(max(0.0, fetcher.deadline_s - time.monotonic()) * 1000 + 1)
        assert time.monotonic() < end_s, "nothing happens"
    return answers[0][1]


def test_a_store_that_is_away_is_asked_again_for_the_next_want(
    cache: DiskCache, url: str, store: WebStore
) -> None:
    folder = prepare(cache, url)
    with closing(Fetcher(cache, {"blobs": folder}, budget_bytes=BUDGET, patience_s=0.5)) as fetcher:
        store.is_away = True
        answer = answer_of(fetcher, Want(1, "blobs", ((20, 21),)))
        assert isinstance(answer, Absent)
        assert answer.kind in ("reset", "unreachable")
        assert sum(fetcher.record.retries.values()) > 0
        store.is_away = False
        assert answer_of(fetcher, Want(2, "blobs", ((20, 21),))) == Here(2)


@pytest.mark.parametrize("number", [FETCHING + 1, INDEXING])
def test_what_a_stopped_process_holds_is_absent_and_the_rest_is_fetched(
    cache: DiskCache, url: str, number: int
) -> None:
    folder = prepare(cache, url)
    with (
        closing(CachedDataset.open(folder)) as other,
        closing(Fetcher(cache, {"blobs": folder}, patience_s=0.5)) as fetcher,
    ):
        other.mark_shard(0, there=False)
        assert other.lock(number)
        absent = answer_of(fetcher, Want(1, "blobs", ((20, 21),)))
        assert isinstance(absent, Absent)
        assert absent.kind == "timeout"
        assert f"fuser {folder}/presence" in absent.message
        assert answer_of(fetcher, Want(2, "blobs", ((90, 91),))) == Here(2)
        other.unlock(number)
        assert answer_of(fetcher, Want(3, "blobs", ((20, 21),))) == Here(3)


def test_what_a_killed_transfer_wrote_takes_no_room_for_good(cache: DiskCache, url: str) -> None:
    folder = prepare(cache, url)
    with closing(Fetcher(cache, {"blobs": folder})) as fetcher:
        assert answer_of(fetcher, Want(1, "blobs", ((0, 32),))) == Here(1)
    before = cache.used_bytes()
    with closing(CachedDataset.open(folder)) as cached:
        cached.mark(16, 32, there=False)  # as if it had been killed before it said so
    with closing(Fetcher(cache, {"blobs": folder})) as fetcher:
        wait_until(lambda: cache.used_bytes() < before - 5_000_000, "it is swept")
        assert fetcher.cached("blobs").has(np.arange(16))
