"""A daemon as the actor of a host runs it, without Ray."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.daemon import free_port
from feeder.client.stats import request_counters
from feeder.cluster.host_actor import HostActor
from feeder.process.child import child_environment
from tests.support.daemon import DEADLINE_S, is_alive, pack_small, wait_until
from tests.support.sources import REPOSITORY


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("data"))


def configuration(dataset: Path) -> str:
    return f'[serve]\nworkers = 1\nslots_bytes = "16 MiB"\n[data]\nd = "{dataset}"\n'


def family_of(parent: int) -> list[psutil.Process]:
    """The supervisor, a node process and a worker: not the servers that other tests may have."""
    family = []
    for child in psutil.Process(parent).children():
        if {"feeder", "serve"} <= {*child.cmdline()}:
            family += [child, *child.children(recursive=True)]
    assert len(family) >= 3
    return family


def test_a_daemon_becomes_ready_and_is_ended(dataset: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    actor = HostActor(configuration(dataset), ["--bind", endpoint, "--name", "feeder-3"])
    state = actor.watch("starting", DEADLINE_S)
    assert state["state"] == "ready", state
    assert state["facts"]["endpoints"] == ((endpoint,),)
    assert list(state["facts"]["data"]) == ["d"]
    assert request_counters(endpoint, DEADLINE_S)
    family = family_of(os.getpid())
    actor.end()
    assert actor.watch("ready", DEADLINE_S)["state"] == "ended"
    wait_until(lambda: not any(map(is_alive, family)), "all of its processes are gone")


def test_a_daemon_that_cannot_start_or_is_killed_leaves_its_reason(
    dataset: Path, tmp_path: Path
) -> None:
    bind = ["--bind", f"tcp://127.0.0.1:{free_port()}"]
    state = HostActor(configuration(tmp_path / "gone"), bind).watch("starting", DEADLINE_S)
    assert state["state"] == "ended"
    assert "gone" in state["last_line"]
    assert not state["last_line"].startswith("feeder:")
    actor = HostActor(configuration(dataset), bind)
    ready = actor.watch("starting", DEADLINE_S)
    assert ready["state"] == "ready", ready
    for process in family_of(os.getpid()):
        process.send_signal(signal.SIGKILL)
    ended = actor.watch("ready", DEADLINE_S)
    assert ended["state"] == "ended"
    assert "was ended by signal 9" in ended["last_line"]


def test_a_daemon_dies_with_the_process_that_runs_it(dataset: Path) -> None:
    program = (
        "import sys\n"
        "from feeder.cluster.host_actor import HostActor\n"
        "actor = HostActor(sys.argv[1], sys.argv[2:])\n"
        "sys.stdout.write(actor.watch('starting', 60.0)['state'] + '\\n')\n"
        "sys.stdout.flush()\n"
        "actor.watch('ready', 600.0)\n"
    )
    bind = f"tcp://127.0.0.1:{free_port()}"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, configuration(dataset), "--bind", bind],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        family = family_of(parent.pid)
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: not any(map(is_alive, family)), "the daemon is gone")
