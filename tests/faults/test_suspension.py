"""The whole daemon is suspended and goes on, as by docker pause, a cgroup freezer or a suspended
virtual machine: nothing is replaced, and no silence is counted."""

import re
import signal
import time
from pathlib import Path

import psutil

from feeder.client.stats import request_report
from tests.faults.client import Client
from tests.support.daemon import DEADLINE_S, Daemon, node_processes, serve, wait_until

SUSPENDED_S = 6.0
WATCHED_S = 5.0
"""Hung node processes are noticed within this time, stopped workers within 3 s."""

EARLY, BATCHES = 20, 500
"""More than a client takes until all processes are stopped."""

OPTIONS = ("--chunk-images", "2", "--decoded-bytes", "0", "--lease-s", "600")
REPLACED = "no progress|is stuck|no heartbeat|: replaced|: restarted|serves again"


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
        got = client.answers(EARLY)
        processes = tree(daemon)
        for process in processes:  # the parent first: it must not see that a child is stopped
            process.send_signal(signal.SIGSTOP)
        wait_on_clock(SUSPENDED_S)
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)
        resumed_s = time.monotonic()
        (node,) = request_report(daemon.endpoint, DEADLINE_S).nodes
        assert node.state == "ready"
        got += client.answers(BATCHES - EARLY)
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
