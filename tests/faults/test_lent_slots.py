"""Clients that map slots and die, stop or outlive the daemon: no slot leaks, no byte is wrong."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.client import Client, stop
from tests.support.daemon import Daemon, resume, serve, wait_until
from tests.support.lent_client import SLOTS, digest, expected, make_loader
from trainer_client import FeederLoader


@pytest.fixture
def daemon(packed: Path, tmp_path: Path) -> Iterator[Daemon]:
    with serve(packed, "--chunk-images", "4", bind=f"ipc://{tmp_path}/node") as running:
        yield running


def all_lent(daemon: Daemon, batches: int) -> None:
    wait_until(lambda: daemon.counters()["batches_lent"] == batches, f"{batches} batches lent")


def all_free(daemon: Daemon) -> None:
    wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "all slots are free")
    counters = daemon.counters()
    assert (counters["sessions"], counters["slots_held_bytes"]) == (0, 0)


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    stop(process)
    try:
        yield
    finally:
        resume(process)


def take(loader: FeederLoader, batches: int) -> list[str]:
    """Take batches, across epochs."""
    taken: list[str] = []
    while True:
        for batch in loader:
            taken.append(digest(batch))
            if len(taken) == batches:
                return taken


def test_slots_of_a_killed_client_are_free_at_once_and_others_continue(daemon: Daemon) -> None:
    undisturbed = expected(daemon.endpoint, 12)
    wait_until(lambda: daemon.counters()["sessions"] == 0, "the first client's session has ended")
    node, before = daemon.node, daemon.counters()
    fds = node.num_fds()
    with make_loader(daemon.endpoint) as other:
        batches = iter(other)
        taken = [digest(next(batches))]
        all_lent(daemon, 1 + SLOTS)
        with Client() as killed:
            killed.open(daemon.endpoint)
            killed.opened()
            assert killed.take(1) == undisturbed[:1] == taken
            all_lent(daemon, 2 * (1 + SLOTS))
            held = daemon.counters()["slots_held_bytes"]
        wait_until(
            lambda: daemon.counters()["slots_held_bytes"] == held // 2,
            "its slots are no longer held",
        )
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == held // 2, "they are free")
        taken += [digest(batch) for batch in batches]
        assert taken + take(other, 7) == undisturbed
        assert other.statistics().reconnects == 0
        assert other.statistics().batches_lent >= 12
        counters = daemon.counters()
        assert counters["sessions_lost"] == before["sessions_lost"] + 1
        assert counters["sessions_expired"] == 0
    all_free(daemon)
    wait_until(lambda: node.num_fds() <= fds, "no descriptor leaks")


def test_stopped_client_keeps_only_its_own_slots_and_reads_them_when_resumed(
    packed: Path, tmp_path: Path
) -> None:
    with (
        serve(packed, "--lease-s", "3", bind=f"ipc://{tmp_path}/node") as daemon,
        Client() as client,
    ):
        undisturbed = expected(daemon.endpoint, 12)
        client.open(daemon.endpoint)
        client.opened()
        assert client.take(1) == undisturbed[:1]
        all_lent(daemon, 1 + SLOTS)
        held = daemon.counters()["slots_held_bytes"]
        client.stop()
        with make_loader(daemon.endpoint) as other:
            assert take(other, 12) == undisturbed
            wait_until(lambda: daemon.counters()["sessions_expired"], "its lease has expired")
        wait_until(
            lambda: daemon.counters()["slots_committed_bytes"] == held,
            "the other client's slots are free",
        )
        assert daemon.counters()["slots_held_bytes"] == held, "it may still read them"
        client.process.resume()
        assert client.take(11) == undisturbed[1:]
        copied = client.statistics()["copied_because"]
        assert copied is None, "the new session's slots were mapped too"
        client.close()
        all_free(daemon)


def test_client_outlives_node_process_and_workers_with_its_lent_slots(
    daemon: Daemon,
) -> None:
    undisturbed = expected(daemon.endpoint, 20)
    with make_loader(daemon.endpoint) as loader:
        batches = iter(loader)
        taken = [digest(next(batches))]
        all_lent(daemon, 1 + SLOTS)
        with stopped(psutil.Process(daemon.process.pid)):  # so no successor starts
            daemon.node.kill()
            taken.append(digest(next(batches)))
            assert loader.statistics().reconnects == 0, "lent slots are still readable"
        daemon.wait_line("node process 0 serves again")
        taken += [digest(batch) for batch in batches]
        for worker in daemon.workers():
            worker.kill()
        assert taken + take(loader, 15) == undisturbed
        # A busy successor may lose the connection once more.
        assert loader.statistics().reconnects in (1, 2)
        assert loader.statistics().copied_because is None
    all_free(daemon)
    daemon.family()


def test_lent_slots_stay_readable_after_a_clean_daemon_exit(packed: Path, tmp_path: Path) -> None:
    with serve(packed, bind=f"ipc://{tmp_path}/node") as first:
        loader = make_loader(first.endpoint)
        with loader:
            batches = iter(loader)
            taken = [digest(next(batches))]
            all_lent(first, 1 + SLOTS)
            assert first.stop()[0] == 0
            assert first.close() == []
            taken += [digest(next(batches)) for _ in range(4)]
            assert next(batches, None) is None
            assert loader.statistics().reconnects == 0
            with serve(packed, bind=f"ipc://{tmp_path}/node") as second:
                taken += take(loader, 5)
                assert taken == expected(second.endpoint, 10)
                assert loader.statistics().reconnects == 1
                assert loader.statistics().copied_because is None
