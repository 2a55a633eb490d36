"""SIGTERM drains the daemon: requests in flight are served, and it ends within 5 s."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset.opened import Dataset
from feeder.wire.messages import Draining, Refused
from tests.faults.client import stop
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    client_process,
    happens_within,
    node_processes,
    pack_small,
    small_recipe,
    wait_until,
)

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


def test_requests_in_flight_are_served(packed: Path, dataset: Dataset) -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 0)]
    with serve(packed, "--chunk-images", "2") as daemon, RawClient(daemon.endpoint) as client:
        client.hello(_LARGE)
        client.want(*keys)
        client.receive()
        daemon.family()
        daemon.process.send_signal(signal.SIGTERM)
        for key in keys:
            check_batch(dataset, _LARGE, key, client.take(key), seed=3)
        others = client.others or [client.receive()]  # it may come after the last chunk
        assert others == [Draining(session=client.session)]
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_gone()


def test_new_requests_are_refused_while_draining(packed: Path) -> None:
    with serve(packed, "--lease-s", "60") as daemon, RawClient(daemon.endpoint) as client:
        keys = [(epoch, index) for epoch in (0, 1) for index in (0, 1, 2)]
        with client_process(daemon.endpoint, _LARGE, keys) as stuck:
            stuck.send_signal(signal.SIGSTOP)  # keeps the drain from finishing
            client.hello(small_recipe())
            daemon.process.send_signal(signal.SIGTERM)
            assert client.receive() == Draining(session=client.session)
            client.want((0, 0))
            answer = client.receive()
            assert isinstance(answer, Refused)
            assert answer.code == "draining"
            assert client.hello(small_recipe()).code == "draining"


def test_idle_daemon_ends_at_once(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            daemon.wait_line("draining")
            return took_s

    happens_within(3, end)


def test_stuck_client_delays_the_end_by_no_more_than_the_drain(packed: Path) -> None:
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


def test_stuck_node_process_is_killed_in_time(packed: Path) -> None:
    def end() -> float:
        with serve(packed) as daemon:
            daemon.node.suspend()
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(6, end)


def test_stuck_worker_delays_the_end_by_no_more_than_the_drain(packed: Path) -> None:
    def end() -> float:
        with serve(packed, "--drain-s", "1") as daemon, RawClient(daemon.endpoint) as client:
            client.hello(small_recipe())
            for worker in daemon.workers():
                worker.suspend()
            client.want((0, 0))
            wait_until(
                lambda: daemon.counters()["sessions"] == 1, "the node process still responds"
            )
            status, took_s = daemon.stop()
            assert status == 0
            daemon.wait_gone()
            return took_s

    happens_within(4.5, end)


def test_second_signal_ends_the_daemon_at_once(packed: Path) -> None:
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


def test_draining_daemon_is_not_ready(packed: Path, tmp_path: Path) -> None:
    """The supervisor is stopped while the node process becomes ready, then gets SIGTERM."""
    blocked = BlockedWorkers(tmp_path)
    options = ("--data", f"d={packed}", "--workers", "1", "--bind", f"ipc://{tmp_path}/s")
    with Daemon(*options, environ=blocked.environ, is_ready=False) as daemon:
        wait_until(lambda: blocked.have_started, "the node process has started its worker")
        supervisor = psutil.Process(daemon.process.pid)
        stop(supervisor)
        blocked.unblock()
        (node,) = node_processes(supervisor)
        wait_until(
            lambda: are_asleep(node, *node.children()),
            "the node process has reported that it is ready",
        )
        daemon.process.send_signal(signal.SIGTERM)
        supervisor.resume()
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.wait_line("draining")
        daemon.wait_gone()
        assert not any(line.startswith("feeder: ready") for line in daemon.lines)


def test_only_main_threads_receive_signals(packed: Path) -> None:
    """The kernel may deliver a signal to any thread that has not blocked it; handlers run in the
    main thread, which would notice only once it wakes up.
    """
    ours = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    with serve(packed) as daemon:
        for process in (daemon.process, daemon.node):
            threads = {int(task.name): task for task in Path(f"/proc/{process.pid}/task").iterdir()}
            assert signal.SIGTERM not in blocked_signals(threads.pop(process.pid))
            for number, thread in threads.items():
                assert blocked_signals(thread) >= ours, (process.pid, number)


def blocked_signals(task: Path) -> set[int]:
    """Return a thread's blocked signals; ``task`` is its folder in ``/proc/PID/task``."""
    (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", (task / "status").read_text(), re.MULTILINE)
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def are_asleep(node: psutil.Process, *workers: psutil.Process) -> bool:
    """Return whether a node process and its workers, at least one, sleep at the same time.

    A process that is runnable or waits for a disk is not asleep.
    """

    def switches() -> int:
        return int(node.num_ctx_switches().voluntary)

    before = switches()
    states = [each.status() for each in (node, *workers, node)]
    return bool(workers) and set(states) == {psutil.STATUS_SLEEPING} and switches() == before


class BlockedWorkers:
    """Blocks a daemon's workers on a pipe at their start, until ``unblock``."""

    def __init__(self, folder: Path) -> None:
        """Create the files in ``folder``; the daemon needs ``environ``."""
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)
        (folder / "sitecustomize.py").write_text(
            "import sys\n"
            "if 'feeder.worker' in sys.orig_argv:\n"
            f"    open({str(self._pipe)!r}).read()\n"
        )
        self.environ = {"PYTHONPATH": str(folder)}
        self._writer: int | None = None

    @property
    def have_started(self) -> bool:
        """Whether a worker is blocked."""
        if self._writer is None:
            with contextlib.suppress(OSError):  # no reader yet
                self._writer = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        return self._writer is not None

    def unblock(self) -> None:
        """Let the workers continue."""
        assert self._writer is not None
        os.close(self._writer)
