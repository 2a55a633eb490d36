"""Workers and node processes that are stopped while a client trains: noticed and replaced, and the
client gets every batch once, with the same bytes."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.client.stats import request_report
from tests.faults.client import Client
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    failed_batches,
    node_processes,
    pack_small,
    wait_until,
)

OPTIONS = ("--workers", "2", "--chunk-images", "2", "--decoded-bytes", "0", "--lease-s", "600")
BATCHES = 40
STOPPED = r"\(kernel state: stopped by a (signal|debugger)\)"
"""tests.support.starve stops as debuggers do."""

EARLY = 12
"""Batches before the stop; their chunks teach the daemon what chunks take."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("silence"))


@pytest.fixture(scope="module")
def expected(packed: Path) -> list[str]:
    """What a client gets that nothing disturbs."""
    options = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", *OPTIONS)
    with Daemon(*options) as daemon, Client() as client:
        client.open(daemon.endpoint)
        client.opened()
        return client.take(BATCHES)


@pytest.fixture(params=["ipc", "tcp"])
def daemon(request: pytest.FixtureRequest, packed: Path, tmp_path: Path) -> Iterator[Daemon]:
    bind = "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/s"
    with Daemon("--data", f"d={packed}", "--bind", bind, *OPTIONS) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client() as started:
        started.open(daemon.endpoint)
        started.opened()
        yield started


def test_a_stopped_worker_is_reported_and_replaced(
    daemon: Daemon, client: Client, expected: list[str]
) -> None:
    got = client.take(EARLY)
    stopped = daemon.workers()[0]
    stopped.send_signal(signal.SIGSTOP)
    client.ask(BATCHES - EARLY)
    got += client.answers(BATCHES - EARLY)
    assert got == expected
    silence = daemon.wait_line(rf"\(pid {stopped.pid}\) has made no progress for")
    assert ": warning: " in silence
    assert re.search(f"{STOPPED}; it fills rows", silence)
    assert "of dataset d for session" in silence
    daemon.wait_line(rf"\(pid {stopped.pid}\) is stuck, stopped for [0-9.]+ s: ended")
    wait_until(lambda: len(daemon.workers()) == 2, "it is replaced")
    counters = daemon.counters()
    assert counters["worker_silences"] >= 1
    assert counters["workers_killed"] >= 1
    assert not failed_batches(counters)
    assert counters["datasets_stalled"] == 0, "its disk is fine"


def test_a_worker_that_goes_on_is_reported_and_kept(daemon: Daemon, client: Client) -> None:
    client.take(EARLY)
    for worker in daemon.workers():
        worker.send_signal(signal.SIGSTOP)
    client.ask()
    daemon.wait_line("has made no progress for")
    for worker in daemon.workers():
        worker.send_signal(signal.SIGCONT)
    client.answer()
    wait_until(
        lambda: (
            any("makes progress again, after" in line for line in daemon.lines)
            or daemon.counters()["workers_killed"]  # this machine is too slow for the second
        ),
        "it is reported",
    )


def test_a_stopped_node_process_is_replaced(
    daemon: Daemon, client: Client, expected: list[str]
) -> None:
    got = client.take(EARLY)
    node = node_processes(psutil.Process(daemon.process.pid))[0]
    node.send_signal(signal.SIGSTOP)
    client.ask(BATCHES - EARLY)
    line = daemon.wait_line(rf"node process 0 \(pid {node.pid}\) has sent no heartbeat for")
    assert re.search(f"{STOPPED}: ended", line)
    daemon.wait_line("node process 0 serves again")
    got += client.answers(BATCHES - EARLY)
    assert got == expected
    assert daemon.counters()["node_restarts"] == 1
    (described,) = request_report(daemon.endpoint, DEADLINE_S).nodes
    assert (described.restarts, described.hangs) == (1, 1)
