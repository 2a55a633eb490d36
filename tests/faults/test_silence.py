"""Workers and node processes that are stopped while a client trains: noticed and replaced, and the
client gets every batch once, with the same bytes."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.client.stats import request_report
from tests.faults.client import Client, Trainee
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    failed_batches,
    node_processes,
    serve,
    wait_until,
)
from tests.support.lent_client import expected

EARLY, LATER = 12, 28
"""Batches before a stop, whose chunks teach the daemon what chunks take; and after it."""

STOPPED = r"\(kernel state: stopped by a (signal|debugger)\)"
"""tests.support.starve stops as debuggers do."""

OPTIONS = ("--chunk-images", "2", "--decoded-bytes", "0", "--lease-s", "600")

SUSPENDED_S = 6.0
WATCHED_S = 5.0  # hung node processes are noticed within this time, stopped workers within 3 s

BEFORE, BATCHES = 20, 500
"""More than a client takes until all processes are stopped."""

REPLACED = "no progress|is stuck|no heartbeat|: replaced|: restarted|serves again"

Scene = tuple[Daemon, Trainee]


@pytest.fixture(scope="module")
def scene(packed: Path) -> Iterator[Scene]:
    with serve(packed, *OPTIONS) as daemon, Client() as client:
        trainee = Trainee(client, expected(daemon.endpoint, 2 * (EARLY + LATER)))
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


# The whole daemon is suspended, as by docker pause or a cgroup freezer


def tree(daemon: Daemon) -> list[psutil.Process]:
    """Return the supervisor, its node process, and the workers, in this order."""
    return [psutil.Process(daemon.process.pid), daemon.node, *daemon.workers()]


def wait_on_clock(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end_s, f"{seconds:g} s have passed", 2 * seconds)


def test_a_suspension_costs_no_process(packed: Path, tmp_path: Path) -> None:
    with (
        serve(packed, *OPTIONS, bind=f"ipc://{tmp_path}/s") as daemon,
        Client() as client,
    ):
        client.open(daemon.endpoint)
        client.opened()
        client.ask(BATCHES)
        got = client.answers(BEFORE)
        processes = tree(daemon)
        for process in processes:  # the parent first: it must not see that a child is stopped
            process.send_signal(signal.SIGSTOP)
        wait_on_clock(SUSPENDED_S)
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)
        resumed_s = time.monotonic()
        (node,) = request_report(daemon.endpoint, DEADLINE_S).nodes
        assert node.state == "ready"
        got += client.answers(BATCHES - BEFORE)
        assert len(set(got)) == BATCHES
        wait_until(
            lambda: request_report(daemon.endpoint, DEADLINE_S).clock_s >= resumed_s + WATCHED_S,
            "it has watched its processes for a while",
        )
        assert tree(daemon) == processes
        assert len(node_processes(processes[0])) == 1
        counters = daemon.counters()
        assert counters["worker_silences"] == 0
        assert counters["workers_killed"] == 0
        assert counters["datasets_stalled"] == 0
        (node,) = request_report(daemon.endpoint, DEADLINE_S).nodes
        assert (node.restarts, node.hangs) == (0, 0)
        assert not [line for line in daemon.lines if re.search(REPLACED, line)]
