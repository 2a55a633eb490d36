"""Processes that are killed or stopped while they fetch from a store; daemons that share a cache.

In each case transfers are in flight: the store has sent half of them. The loader, or the client,
gets the bytes of an undisturbed epoch, and nothing is fetched again that is on the disk.
"""

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.faults.client import stop
from tests.faults.remote import (
    EPOCH,
    PIECE,
    Remote,
    Taker,
    count_there,
    leftovers,
    load_epoch,
    remote_store,
    serve,
    store_record,
    there,
)
from tests.support.daemon import Daemon, happens_within, is_alive, wait_until

VICTIMS: Final = ("worker", "node", "fetcher", "supervisor")
STOPPED: Final = "stopped"
STALLED: Final = ("shard-00003.fds", "shard-00004.fds")


@dataclass
class Scene:
    """A daemon, with a dataset for each process that is killed."""

    folder: Path
    remote: Remote
    daemon: Daemon

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def start(self) -> None:
        self.daemon = serve(self.folder, *self.remote.data(*VICTIMS, STOPPED))

    def find(self, victim: str) -> psutil.Process:
        modules = {name: f"feeder.{name}" for name in VICTIMS} | {"fetcher": "feeder.disk_cache"}
        return self.daemon.find(modules[victim])


@pytest.fixture(scope="module")
def scene(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("kills")
    with remote_store(published, *VICTIMS, STOPPED) as remote:
        scene = Scene(folder, remote, serve(folder, *remote.data(*VICTIMS, STOPPED)))
        yield scene
        scene.daemon.__exit__(None, None)
    assert leftovers(scene.disk) == []
    shutil.rmtree(scene.disk)


@contextmanager
def stalled_epoch(scene: Scene, name: str) -> Iterator[Future[list[str]]]:
    """An epoch that a loader takes; transfers for it are in flight until the store is mended."""
    remote = scene.remote
    faults = [remote.proxy.strike("stall", f"*/{name}/{shard}") for shard in STALLED]
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(load_epoch, scene.daemon.endpoint, name)
        try:
            wait_until(
                lambda: remote.count_stalled(name) >= 2 and count_there(scene.disk, name) > PIECE,
                "some transfers are in flight, others have ended",
            )
            yield taken
        finally:
            for fault in faults:
                fault.times = 0


@pytest.mark.parametrize("victim", VICTIMS)
def test_an_epoch_goes_on_when_a_process_is_killed_in_mid_transfer(
    scene: Scene, epoch: list[str], victim: str
) -> None:
    remote = scene.remote
    with stalled_epoch(scene, victim) as taken:
        if victim == "supervisor":
            scene.daemon.stop(signal.SIGKILL)
            scene.daemon.close()
        else:
            process = scene.find(victim)
            process.kill()
            wait_until(lambda: not is_alive(process), "it has ended")
        kept, before = there(scene.disk, victim), len(remote.proxy.exchanges)
        remote.proxy.mend()
        if victim == "supervisor":
            scene.start()
        assert taken.result() == epoch
    assert remote.find_again(victim, kept, before) == set()


def test_a_fetcher_that_is_stopped_is_found_and_replaced(scene: Scene, epoch: list[str]) -> None:
    with stalled_epoch(scene, STOPPED) as taken:
        stop(scene.find("fetcher"))
        scene.remote.proxy.mend()
        scene.daemon.wait_line(r"the fetcher \(pid \d+\) hangs: ended")
        assert taken.result() == epoch


def test_sigterm_while_batches_wait_for_the_store_ends_the_daemon_in_time(
    published: Path, tmp_path: Path
) -> None:
    with remote_store(published, "x") as remote:
        remote.proxy.strike("stall", "*/shard-0000[1-4]*")

        def end() -> float:
            with (
                serve(tmp_path, *remote.data("x")) as daemon,
                Taker(daemon.endpoint, "x") as taker,
            ):
                taker.ask()
                wait_until(lambda: store_record(daemon.endpoint).waiting > 0, "batches wait")
                status, took_s = daemon.stop()
                assert status == 0
                daemon.wait_gone()
            shutil.rmtree(tmp_path / "disk")
            return took_s

        happens_within(5.5, end)


def test_two_daemons_on_one_folder_fetch_each_byte_once(
    published: Path, epoch: list[str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        remote_store(published, "x", "y") as remote,
        serve(tmp_path / "one", *remote.data("x", "y"), "--disk-path", disk) as one,
        serve(tmp_path / "two", *remote.data("x", "y"), "--disk-path", disk) as two,
    ):
        with Taker(one.endpoint, "x") as taker, Taker(two.endpoint, "x") as other:
            for _ in range(EPOCH):  # in turn: either is ahead of the other
                assert taker.take(1) == other.take(1)
        remote.assert_nothing_twice("x")
        # One is killed while it fetches what the other waits for.
        faults = [remote.proxy.strike("stall", f"*/y/{shard}") for shard in STALLED]
        with Taker(one.endpoint, "y") as taker, Taker(two.endpoint, "y") as other:
            taker.ask()
            wait_until(lambda: remote.count_stalled("y") >= 2, "transfers are in flight")
            stalled = remote.count_stalled("y")
            other.ask()
            wait_until(lambda: store_record(two.endpoint).waiting > 0, "the other waits for them")
            assert remote.count_stalled("y") == stalled
            one.stop(signal.SIGKILL)
            one.wait_gone()
            for fault in faults:
                fault.times = 0
            assert other.take() == epoch
        remote.proxy.mend()
        remote.assert_nothing_twice("y")
    assert leftovers(disk) == []
