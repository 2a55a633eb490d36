"""The end of the daemon by SIGTERM: what was asked for is finished, and all is over within 5 s."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset import Dataset
from feeder.wire import Draining, Refused
from tests.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    client_process,
    happens_within,
    pack_small,
    small_recipe,
    wait_until,
)
from tests.faults.client import stop

_LARGE = small_recipe(batch_size=16, image_size=320, resize_size=320)  # 4.9 MB a batch


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("drain"))


@pytest.fixture(scope="module")
def dataset(packed: Path) -> Iterator[Dataset]:
    with Dataset.open(packed) as opened:
        yield opened


def serve(packed: Path, *more: str) -> Daemon:
    bind = "tcp://127.0.0.1:0"
    return Daemon("--data", f"d={packed}", "--bind", bind, "--workers", "2", *more)


def test_requests_in_flight_are_finished(packed: Path, dataset: Dataset) -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 0)]
    with serve(packed, "--chunk-images", "2") as daemon, RawClient(daemon.endpoint) as client:
        client.hello(_LARGE)
        client.want(*keys)
        client.receive()
        daemon.family()
        daemon.process.send_signal(signal.SIGTERM)
        for key in keys:
            check_batch(dataset, _LARGE, key, client.take(key), seed=3)
        heard = client.others or [client.receive()]  # it may say so after the last chunk
        assert heard == [Draining(session=client.session)]
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_gone()


def test_nothing_new_is_taken_while_draining(packed: Path) -> None:
    with serve(packed, "--lease-s", "60") as daemon, RawClient(daemon.endpoint) as client:
        keys = [(epoch, index) for epoch in (0, 1) for index in (0, 1, 2)]
        with client_process(daemon.endpoint, _LARGE, keys) as stuck:
            stuck.send_signal(signal.SIGSTOP)  # now the drain cannot be over soon
            client.hello(small_recipe())
            daemon.process.send_signal(signal.SIGTERM)
            assert client.receive() == Draining(session=client.session)
            client.want((0, 0))
            answer = client.receive()
            assert isinstance(answer, Refused)
            assert answer.code == "draining"
            assert client.hello(small_recipe()).code == "draining"


def test_an_idle_daemon_ends_at_once(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            daemon.wait_line("draining")
            return took_s

    happens_within(3, end)


def test_a_stuck_client_delays_the_end_by_the_drain_and_no_more(packed: Path) -> None:
    def end() -> float:
        with serve(packed, "--drain-s", "2") as daemon:
            keys = [(epoch, index) for epoch in (0, 1) for index in (0, 1, 2)]
            with client_process(daemon.endpoint, _LARGE, keys) as client:
                client.send_signal(signal.SIGSTOP)
                status, took_s = daemon.stop()
                assert status == 0
                assert took_s > 1.5
                daemon.wait_gone()
                return took_s

    happens_within(4.5, end)


def test_a_stuck_node_process_is_killed_in_time(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon:
            daemon.node.suspend()
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(6, end)


def test_a_stuck_worker_does_not_delay_the_end_beyond_the_drain(packed: Path) -> None:
    def end() -> float:
        with serve(packed, "--drain-s", "1") as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            for worker in daemon.workers():
                worker.suspend()
            client.want((0, 0))
            wait_until(lambda: daemon.counters()["sessions"] == 1, "it serves on")
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(4.5, end)


def test_a_second_signal_ends_it_at_once(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon:
            daemon.node.suspend()
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_line("draining")
            status, took_s = daemon.stop(signal.SIGINT)
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(3, end)


def test_who_is_asked_to_end_is_not_ready_any_more(tmp_path: Path) -> None:
    """Where it was held up, and the node process has become ready meanwhile."""
    packed = pack_small(tmp_path)
    withheld = Withheld(packed / "shard-00000.fds")
    bind = f"ipc://{tmp_path}/node"
    with Daemon("--data", f"d={packed}", "--bind", bind, is_ready=False) as daemon:
        wait_until(lambda: withheld.is_wanted, "the node process has begun, and reads its dataset")
        supervisor = psutil.Process(daemon.process.pid)
        stop(supervisor)
        withheld.give()
        (node,) = supervisor.children()
        wait_until(lambda: are_asleep(node, *node.children()), "it has told of its readiness")
        daemon.process.send_signal(signal.SIGTERM)
        supervisor.resume()
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_line("draining")
        daemon.wait_gone()
        assert not any(line.startswith("feeder: ready") for line in daemon.lines)


def are_asleep(node: psutil.Process, *workers: psutil.Process) -> bool:
    """Whether a node process and its workers, of which there are some, wait for each other at once.

    Who has not got the processor, or waits for a disk, is not asleep.
    """

    def turns() -> int:
        return int(node.num_ctx_switches().voluntary)

    before = turns()
    states = [each.status() for each in (node, *workers, node)]
    return bool(workers) and set(states) == {psutil.STATUS_SLEEPING} and turns() == before


class Withheld:
    """A shard in whose place there is a pipe: who opens it waits until ``give``."""

    def __init__(self, shard: Path) -> None:
        """Withhold it from now on."""
        self._shard = shard
        self._aside = shard.rename(shard.with_suffix(".aside"))
        self._writer: int | None = None
        os.mkfifo(shard)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody is about to read it."""
        if self._writer is None:
            with contextlib.suppress(OSError):  # nobody has opened it
                self._writer = os.open(self._shard, os.O_WRONLY | os.O_NONBLOCK)
        return self._writer is not None

    def give(self) -> None:
        """Put it back; who waits for it finds its first record unreadable, and no other."""
        assert self._writer is not None
        self._aside.rename(self._shard)
        os.close(self._writer)
