"""A disk cache on a disk that is full, read-only or failing, and one whose files are damaged.

What is on the disk is served, the rest fails in the disk's words, and goes on once that is mended.
"""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from feeder.dataset.format import shard_name
from tests.faults.remote import (
    AHEAD,
    EPOCH,
    Remote,
    Taker,
    cached_folder,
    count_there,
    leftovers,
    make_epochs,
    remote_store,
    serve,
    store_record,
    take_epoch,
    there,
)
from tests.support.daemon import Daemon, customised, wait_until
from tests.support.hanging_fs import small_disk

FAILING: Final = """
import os, sys
def code_for(doing):
    try:
        with open({fault!r}) as file:
            what, code = file.read().split()
    except FileNotFoundError:
        return
    if what == doing:
        raise OSError(int(code), os.strerror(int(code)))
def checked(call):
    def read(descriptor, *arguments):
        if os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(".fds"):
            code_for("read")
        return call(descriptor, *arguments)
    return read
if "feeder.disk_cache" in sys.orig_argv:
    from feeder.disk_cache import cached, transfers
    def write_at(descriptor, data, offset, write=cached.write_at):
        code_for("write")
        write(descriptor, data, offset)
    cached.write_at = transfers.write_at = write_at
if {{"feeder.disk_cache", "feeder.worker"}} & {{*sys.orig_argv}}:
    os.pread, os.preadv = checked(os.pread), checked(os.preadv)
"""
"""Has reads, or the fetcher's writes, fail with the error number in a file while that is there."""

DISK_FAULTS: Final = {
    "full": (errno.ENOSPC, "disk-full", "has no room left: free some, or lower disk_bytes"),
    "read-only": (
        errno.EROFS,
        "disk-read-only",
        "cannot be written (Read-only file system): make it writable, then start again",
    ),
    "failing": (errno.EIO, "disk-failing", "fails (Input/output error): check the disk"),
}
"""By the name of a dataset: the error of writes, the kind of failure, and its line."""

SHARD: Final = shard_name(3)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(1000))


def overwrite_index(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4000, os.SEEK_END)
        file.write(bytes(3000))


DAMAGES: Final[dict[str, Callable[[Path], None]]] = {
    "overwritten": overwrite,
    "index": overwrite_index,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": Path.unlink,
}
"""By the name of a dataset: what is done to a shard in its cache."""


@dataclass
class Scene:
    remote: Remote
    daemon: Daemon
    disk: Path
    fault: Path
    epochs: list[str]

    def count_failures(self, kind: str) -> int:
        return store_record(self.daemon.endpoint).failures.get(kind, 0)

    @contextmanager
    def failing(self, doing: str, code: int) -> Iterator[None]:
        new = self.fault.with_suffix(".new")
        new.write_text(f"{doing} {code}")
        new.replace(self.fault)
        try:
            yield
        finally:
            self.fault.unlink()


@pytest.fixture(scope="module")
def scene(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("disk")
    names, fault = (*DISK_FAULTS, "unreadable", *DAMAGES), folder / "fault"
    environ = customised(folder / "site", FAILING.format(fault=str(fault)))
    with remote_store(published, *names) as remote:
        with serve(folder, *remote.data(*names), environ=environ) as daemon:
            epochs = make_epochs(published, epochs=2)
            yield Scene(remote, daemon, folder / "disk", fault, epochs)
        assert leftovers(folder / "disk") == []
        shutil.rmtree(folder / "disk")


def await_ahead(disk: Path, name: str) -> None:
    wait_until(lambda: count_there(disk, name) == AHEAD, "its window is read ahead")


@pytest.mark.parametrize("name", DISK_FAULTS)
def test_a_disk_that_takes_nothing_fails_what_is_not_on_it_in_its_words(
    scene: Scene, name: str
) -> None:
    code, kind, words = DISK_FAULTS[name]
    right, endpoint = scene.epochs[:EPOCH], scene.daemon.endpoint
    before = scene.count_failures(kind)
    with Taker(endpoint, name, batches=10) as taker:
        taken = taker.take(1)
        await_ahead(scene.disk, name)
        with scene.failing("write", code):
            taken += taker.take(9)
    failed = [line for line in taken if line not in right]
    assert taken == right[: 10 - len(failed)] + failed
    assert {*failed} == {f"failed: the disk cache in {scene.disk}/feeder-pieces {words}"}
    wait_until(lambda: scene.count_failures(kind) == before + len(failed), "they are counted")
    assert take_epoch(endpoint, name) == right


def test_a_disk_that_cannot_be_read_fails_in_its_words(scene: Scene) -> None:
    right, endpoint = scene.epochs[:EPOCH], scene.daemon.endpoint
    assert take_epoch(endpoint, "unreadable") == right
    before = scene.count_failures("disk-failing")
    with scene.failing("read", errno.EIO):
        failed = take_epoch(endpoint, "unreadable")
        assert {*failed} == {
            f"failed: the disk cache in {scene.disk}/feeder-pieces {DISK_FAULTS['failing'][2]}"
        }
        wait_until(
            lambda: scene.count_failures("disk-failing") == before + EPOCH, "they are counted"
        )
    assert take_epoch(endpoint, "unreadable") == right
    scene.remote.assert_nothing_twice("unreadable")


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_under_a_running_daemon_is_fetched_again(scene: Scene, damage: str) -> None:
    """In mid-epoch: parts of the shard are there, and others have yet to come."""
    with Taker(scene.daemon.endpoint, damage, batches=2 * EPOCH) as taker:
        taken = taker.take(1)
        await_ahead(scene.disk, damage)
        before = len(scene.remote.proxy.exchanges)
        kept = there(scene.disk, damage)
        DAMAGES[damage](cached_folder(scene.disk, damage) / SHARD)
        assert taken + taker.take(2 * EPOCH - 1) == scene.epochs
    assert scene.remote.find_again(damage, kept, before) <= {SHARD}, "the others are not damaged"


def test_a_disk_that_others_fill_is_served_from_as_far_as_it_goes(
    published: Path, epoch: list[str], tmp_path: Path
) -> None:
    with (
        small_disk(tmp_path / "small", "size=90m") as disk,
        remote_store(published, "x", "cold") as remote,
    ):
        options = (*remote.data("x", "cold"), "--disk-path", disk)
        with serve(tmp_path, *options, "--disk-bytes", "1GB") as daemon:
            fill(disk / "filler")
            with Taker(daemon.endpoint, "x", batches=2) as taker:
                assert {*taker.take(2)} == {
                    f"failed: the disk cache in {disk}/feeder-pieces {DISK_FAULTS['full'][2]}"
                }
            (disk / "filler").unlink()
            assert take_epoch(daemon.endpoint, "x") == epoch
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        requests = len(remote.shard_reads("x"))
        with serve(tmp_path, *options) as daemon:
            assert re.search(
                rf"feeder: warning: serving {remote.url('x')} with what {disk}/feeder-pieces/x-\S+ "
                rf"has: keeping remote datasets in {disk}/feeder-pieces failed: not writable \("
                r"Read-only file system\); make it writable, then start again, or choose another "
                r"folder with cache\.disk_path \(--disk-path\)",
                "".join(daemon.lines),
            )
            assert take_epoch(daemon.endpoint, "x") == epoch
            assert {*take_epoch(daemon.endpoint, "cold")} == {
                f"failed: the disk cache in {disk}/feeder-pieces {DISK_FAULTS['read-only'][2]}"
            }
        assert len(remote.shard_reads("x")) == requests
        assert leftovers(disk) == []


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):  # ENOSPC
                while file.write(bytes(size)) == size:
                    pass
