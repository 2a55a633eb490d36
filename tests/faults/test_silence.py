"""Workers and node processes that are stopped while a client trains: noticed and replaced, and the
client gets every batch once, with the same bytes."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.client.stats import request_report
from tests.faults.client import Client, Trainee
from tests.support.daemon import DEADLINE_S, Daemon, failed_batches, serve, wait_until
from tests.support.lent_client import expected

EARLY, LATER = 12, 28
"""Batches before a stop, whose chunks teach the daemon what chunks take; and after it."""

STOPPED = r"\(kernel state: stopped by a (signal|debugger)\)"
"""tests.support.starve stops as debuggers do."""

Scene = tuple[Daemon, Trainee]


@pytest.fixture(scope="module", params=["ipc", "tcp"])
def scene(
    request: pytest.FixtureRequest, packed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    ipc = f"ipc://{tmp_path_factory.mktemp('silence')}/s"
    bind = ipc if request.param == "ipc" else "tcp://127.0.0.1:0"
    options = ("--chunk-images", "2", "--decoded-bytes", "0", "--lease-s", "600")
    with serve(packed, *options, bind=bind) as daemon, Client() as client:
        trainee = Trainee(client, expected(daemon.endpoint, 3 * (EARLY + LATER)))
        client.open(daemon.endpoint)
        client.opened()
        yield daemon, trainee


def test_a_stopped_worker_is_reported_and_replaced(scene: Scene) -> None:
    daemon, trainee = scene
    trainee.take(EARLY)
    stopped = daemon.workers()[0]
    stopped.send_signal(signal.SIGSTOP)
    trainee.take(LATER)
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


def test_a_worker_that_goes_on_is_reported_and_kept(scene: Scene) -> None:
    daemon, trainee = scene
    trainee.take(EARLY)
    workers = daemon.workers()
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    trainee.ask(LATER)
    pids = "|".join(str(worker.pid) for worker in workers)
    daemon.wait_line(rf"\(pid ({pids})\) has made no progress for")
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
    trainee.receive()
    # This machine may be too slow for the second: then one is killed meanwhile.
    daemon.wait_line(rf"\(pid ({pids})\) (makes progress again, after|is stuck)")


def test_a_stopped_node_process_is_replaced(scene: Scene) -> None:
    daemon, trainee = scene
    trainee.take(EARLY)
    node = daemon.node
    node.send_signal(signal.SIGSTOP)
    trainee.take(LATER)
    line = daemon.wait_line(rf"node process 0 \(pid {node.pid}\) has sent no heartbeat for")
    assert re.search(f"{STOPPED}: ended", line)
    daemon.wait_line("node process 0 serves again")
    assert daemon.counters()["node_restarts"] == 1
    (described,) = request_report(daemon.endpoint, DEADLINE_S).nodes
    assert (described.restarts, described.hangs) == (1, 1)
