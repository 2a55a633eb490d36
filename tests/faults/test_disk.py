"""Shard files that change under a running daemon: one clear error, or the right bytes."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from feeder.errors import DatasetError
from tests.support.daemon import Daemon, failed_batches, serve, wait_until
from tests.support.lent_client import digest, expected, make_loader

EPOCH = 5  # batches
SHARD = "shard-00002.fds"


@pytest.fixture(scope="module")
def own(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, which the tests damage."""
    return shutil.copytree(packed, tmp_path_factory.mktemp("disk") / "own")


@pytest.fixture(scope="module")
def daemon(own: Path) -> Iterator[Daemon]:
    with serve(own, bind=f"ipc://{own.parent}/node", workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(daemon: Daemon) -> list[str]:
    """All batches that the tests take; so the daemon reads every sample before any change."""
    return expected(daemon.endpoint, 4 * EPOCH)


@pytest.fixture
def shard(own: Path, undisturbed: list[str], tmp_path: Path) -> Iterator[Path]:
    """A shard, restored after the test."""
    path = own / SHARD
    shutil.copy(path, tmp_path / SHARD)
    yield path
    path.write_bytes((tmp_path / SHARD).read_bytes())


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        content = bytearray(file.read())
        file.seek(64)
        file.write(bytes(byte ^ 0xFF for byte in content[64 : len(content) // 2]))


def truncate(path: Path) -> None:
    os.truncate(path, 500)


@pytest.mark.parametrize("damage", [overwrite, truncate])
def test_shard_damaged_after_it_was_read_gives_one_error_and_no_wrong_bytes(
    daemon: Daemon, shard: Path, undisturbed: list[str], damage: Callable[[Path], None]
) -> None:
    intact = shard.read_bytes()
    failed = failed_batches(daemon.counters())
    with make_loader(daemon.endpoint) as loader:
        batches = iter(loader)
        taken = [digest(next(batches))]
        damage(shard)
        with pytest.raises(DatasetError, match=SHARD):
            taken += map(digest, chain(batches, loader))
        assert taken == undisturbed[: len(taken)]
        assert failed_batches(daemon.counters()) > failed
        shard.write_bytes(intact)
        loader.set_epoch(3)
        assert [digest(batch) for batch in loader] == undisturbed[3 * EPOCH :]
    wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")


def test_replaced_shard_is_served_until_a_new_worker_refuses_the_other_file(
    daemon: Daemon, own: Path, shard: Path, undisturbed: list[str], tmp_path: Path
) -> None:
    """The name then leads to another file, which does not match the manifest."""
    other = tmp_path / "other"
    shutil.copy(own / "shard-00001.fds", other)
    intact = tmp_path / "intact"
    shard.rename(intact)
    other.rename(shard)
    with make_loader(daemon.endpoint) as loader:
        assert [digest(batch) for batch in loader] == undisturbed[:EPOCH]
        (worker,) = daemon.workers()
        worker.kill()
        with pytest.raises(DatasetError, match=rf"{SHARD} does not match the manifest"):
            list(chain(loader, loader))
        intact.replace(shard)
        loader.set_epoch(3)
        assert [digest(batch) for batch in loader] == undisturbed[3 * EPOCH :]
    daemon.family()
