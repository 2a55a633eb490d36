"""A store that fails while a daemon serves datasets from it: the right bytes, or the store's line.

One daemon serves the same dataset from the disk and below a prefix of the store for each test, so
that each finds its own cold.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from bench.store_proxy import Kind
from feeder.dataset.format import shard_name
from feeder.metrics.records import StoreRecord
from tests.faults.remote import (
    EPOCH,
    WHOLE,
    WINDOW,
    WINDOWED,
    Remote,
    Taker,
    leftovers,
    make_epochs,
    remote_store,
    store_record,
    take_epoch,
)
from tests.support.daemon import Daemon, wait_until

PASSING: Final[dict[Kind, str]] = {
    "error": "server",
    "unavailable": "throttled",  # a store that has too much to do says so with 503
    "slow-down": "throttled",
    "throttled": "throttled",
    "reset": "reset",
    "short": "reset",
    "short-length": "short",
}
"""Faults, and the reason by which the requests that are made again are counted."""

LASTING: Final[dict[Kind, tuple[str, str]]] = {
    "denied": (
        "denied",
        "access denied (AccessDenied as told): give these credentials the right to read it, or use "
        "others",
    ),
    "expired": ("expired", "the credentials have expired (ExpiredToken as told): renew them"),
    "no-bucket": (
        "gone",
        "there is no such object or bucket (NoSuchBucket as told): check the address",
    ),
    "no-object": (
        "gone",
        "there is no such object or bucket (NoSuchKey as told): check the address",
    ),
}
"""Faults that no second try mends: the kind of failure, and what the line says."""

ORDERS: Final = {"windowed": WINDOWED, "whole": WHOLE}
OTHERS: Final = ("flip", "damaged", "changed", "slow")
CHANGED: Final = shard_name(3)
DAMAGED: Final = shard_name(1)


@dataclass
class Scene:
    remote: Remote
    daemon: Daemon
    epochs: dict[str, list[str]]
    """Two epochs of the dataset, by the order's name."""

    @property
    def epoch(self) -> list[str]:
        """The first of the order WINDOWED."""
        return self.epochs["windowed"][:EPOCH]

    def counted(self, holds: Callable[[StoreRecord, Mapping[str, int]], bool], what: str) -> None:
        """Wait for the fetcher's record, and the node process's counters, to be as they should."""
        endpoint = self.daemon.endpoint
        wait_until(lambda: holds(store_record(endpoint), self.daemon.counters()), what)


@pytest.fixture(scope="module")
def scene(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("remote")
    names = [*ORDERS, *PASSING, *LASTING, *OTHERS]
    with remote_store(published, *names) as remote:
        remote.own_shard("changed", CHANGED)
        remote.own_shard("damaged", DAMAGED)
        with Daemon(
            *("--data", f"local={published}", *remote.data(*names), "--disk-path", folder / "disk"),
            *("--bind", f"ipc://{folder}/node", "--workers", "1", "--lease-s", "600"),
        ) as daemon:
            epochs = {name: make_epochs(published, ORDERS[name], epochs=2) for name in ORDERS}
            yield Scene(remote, daemon, epochs)
        assert leftovers(folder / "disk") == []
        shutil.rmtree(folder / "disk")


@pytest.mark.parametrize("order", ORDERS)
def test_epochs_from_a_store_have_the_same_bytes_and_each_leaves_the_store_once(
    scene: Scene, order: str
) -> None:
    remote = scene.remote
    with Taker(scene.daemon.endpoint, order, ORDERS[order], batches=2 * EPOCH) as taker:
        assert taker.take() == scene.epochs[order][:EPOCH]
        wait_until(lambda: remote.is_all_sent(order), "all of it is read ahead")
        requests = len(remote.shard_reads(order))
        assert taker.take() == scene.epochs[order][EPOCH:]
    assert len(remote.shard_reads(order)) == requests, "the second epoch is on the disk"
    remote.assert_nothing_twice(order)


@pytest.mark.parametrize("kind", PASSING)
def test_a_fault_that_passes_is_tried_again_and_counted(scene: Scene, kind: Kind) -> None:
    reason, before = PASSING[kind], store_record(scene.daemon.endpoint)
    scene.remote.proxy.strike(kind, f"*/{kind}/shard-*", times=5)
    assert take_epoch(scene.daemon.endpoint, kind) == scene.epoch
    scene.counted(
        lambda store, _: store.retries.get(reason, 0) == before.retries.get(reason, 0) + 5,
        f"5 retries because of {reason}",
    )
    assert store_record(scene.daemon.endpoint).failures == before.failures
    scene.remote.assert_nothing_twice(kind)


def test_wrong_bytes_are_fetched_again_and_counted(scene: Scene) -> None:
    before = store_record(scene.daemon.endpoint)
    scene.remote.proxy.strike("flip", "*/flip/shard-*", times=2)  # of three attempts at a piece
    assert take_epoch(scene.daemon.endpoint, "flip") == scene.epoch
    scene.counted(lambda store, _: store.damaged == before.damaged + 2, "2 came damaged")


def flip_byte(path: Path) -> None:
    """Change a byte in the middle of a file, which keeps its time and so its ETag."""
    before_ns = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        middle = file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before_ns, before_ns))


def test_bytes_that_stay_wrong_fail_the_batches_that_need_them(scene: Scene) -> None:
    url, shard = scene.remote.url("damaged"), scene.remote.store.root / "damaged" / DAMAGED
    before, counters = store_record(scene.daemon.endpoint), scene.daemon.counters()
    flip_byte(shard)
    taken = take_epoch(scene.daemon.endpoint, "damaged")
    (failed,) = [line for line in taken if line not in scene.epoch]
    assert [t for t in taken if t != failed] == [t for t in scene.epoch if t in taken]
    assert re.fullmatch(
        rf"failed: {url}: sample \d+ came 3 times with a wrong checksum: run `feeder verify {url}`",
        failed,
    )
    scene.counted(
        lambda store, node: (
            store.failures.get("damaged", 0) == before.failures.get("damaged", 0) + 1
            and store.damaged >= before.damaged + 3
            and node["batches_failed.store"] == counters.get("batches_failed.store", 0) + 1
        ),
        "it is counted",
    )
    flip_byte(shard)
    assert take_epoch(scene.daemon.endpoint, "damaged") == scene.epoch


@pytest.mark.parametrize("kind", LASTING)
def test_what_the_store_refuses_is_said_in_its_words_until_that_is_mended(
    scene: Scene, kind: Kind
) -> None:
    reason, words = LASTING[kind]
    before, counters = store_record(scene.daemon.endpoint), scene.daemon.counters()
    scene.remote.proxy.strike(kind, f"*/{kind}/*")
    failed = take_epoch(scene.daemon.endpoint, kind)
    scene.remote.proxy.mend()
    line = rf"failed: {scene.remote.url(kind)}/shard-0000\d\.fds: {re.escape(words)}"
    assert all(re.fullmatch(line, each) for each in failed), failed
    scene.counted(
        lambda store, node: (
            store.failures.get(reason, 0) == before.failures.get(reason, 0) + EPOCH
            and node.get("batches_failed.store", 0)
            == counters.get("batches_failed.store", 0) + EPOCH
        ),
        "each is counted",
    )
    assert take_epoch(scene.daemon.endpoint, kind) == scene.epoch
    scene.remote.assert_nothing_twice(kind)


def test_an_object_that_changes_is_named_and_what_is_on_the_disk_is_served(scene: Scene) -> None:
    shard, local = scene.remote.store.root / "changed" / CHANGED, scene.epoch
    unchanged_ns = shard.stat().st_mtime_ns
    with Taker(scene.daemon.endpoint, "changed") as taker:
        assert taker.take(1) == local[:1]
        os.utime(shard, ns=(0, 0))  # another ETag
        taken = taker.take(EPOCH - 1)
        failed = {line for line in taken if line.startswith("failed: ")}
        assert failed == {
            f"failed: {scene.remote.url('changed')}/{CHANGED}: the object has changed (status "
            "412): publish changed data at another address"
        }
        assert [t for t in taken if t not in failed] == [t for t in local[1:] if t in taken]
    scene.counted(lambda store, _: store.failures.get("changed", 0) > 0, "it is counted")
    os.utime(shard, ns=(0, unchanged_ns))
    assert take_epoch(scene.daemon.endpoint, "changed") == local
    scene.remote.assert_nothing_twice("changed")


def test_a_store_that_stalls_holds_up_its_own_batches_only(scene: Scene) -> None:
    scene.remote.proxy.strike("stall", "*/slow/shard-*")
    with Taker(scene.daemon.endpoint, "slow") as taker:
        taker.ask()
        wait_until(lambda: scene.remote.count_stalled("slow") > 0, "transfers are in flight")
        assert take_epoch(scene.daemon.endpoint, "local") == scene.epoch
        assert not taker.client.socket.poll(0), "none of its batches has come"
        scene.counted(lambda store, _: store.waiting == WINDOW, "its batches wait")
        scene.remote.proxy.mend()
        scene.remote.proxy.strike("slow", "*/slow/shard-*", amount=20e6)
        assert taker.take() == scene.epoch
    scene.remote.proxy.mend()
    scene.remote.assert_nothing_twice("slow")
