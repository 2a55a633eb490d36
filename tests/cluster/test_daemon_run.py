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
from feeder.cluster.daemon_run import DaemonRun
from feeder.process.child import child_environment
from tests.support.daemon import DEADLINE_S, is_alive, pack_small, wait_until
from tests.support.sources import REPOSITORY


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("data"))


def configuration(dataset: Path) -> str:
    return f'[serve]\nworkers = 1\nslots_bytes = "16 MiB"\n[data]\nd = "{dataset}"\n'


def find_daemons(parent: int) -> list[psutil.Process]:
    children = psutil.Process(parent).children(recursive=True)
    return [child for child in children if "serve" in child.cmdline()]


def test_a_daemon_becomes_ready_and_is_ended(dataset: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    run = DaemonRun(configuration(dataset), ["--bind", endpoint, "--name", "feeder-3"])
    state = run.wait_change(1, DEADLINE_S)
    assert state.state == "ready", state
    assert state.facts is not None
    assert state.facts.endpoints == ((endpoint,),)
    assert list(state.facts.data) == ["d"]
    assert request_counters(endpoint, DEADLINE_S)
    family = [
        process
        for daemon in find_daemons(os.getpid())
        for process in (daemon, *daemon.children(recursive=True))
    ]
    assert len(family) >= 3  # supervisor, node process, worker
    run.end()
    ended = run.wait_change(state.version, DEADLINE_S)
    assert ended.state == "ended"
    wait_until(lambda: not any(map(is_alive, family)), "all of its processes are gone")


def test_a_daemon_that_cannot_start_leaves_its_reason(tmp_path: Path) -> None:
    run = DaemonRun(configuration(tmp_path / "gone"), ["--bind", "tcp://127.0.0.1:0"])
    state = run.wait_change(1, DEADLINE_S)
    assert state.state == "ended"
    assert "gone" in state.last_line
    assert not state.last_line.startswith("feeder:")


def test_a_daemon_that_is_killed_says_so(dataset: Path) -> None:
    run = DaemonRun(configuration(dataset), ["--bind", f"tcp://127.0.0.1:{free_port()}"])
    ready = run.wait_change(1, DEADLINE_S)
    assert ready.state == "ready"
    for daemon in find_daemons(os.getpid()):
        daemon.send_signal(signal.SIGKILL)
    ended = run.wait_change(ready.version, DEADLINE_S)
    assert ended.state == "ended"
    assert "was ended by signal 9" in ended.last_line


def test_a_daemon_dies_with_the_process_that_runs_it(dataset: Path) -> None:
    program = (
        "import sys\n"
        "from feeder.cluster.daemon_run import DaemonRun\n"
        "run = DaemonRun(sys.argv[1], sys.argv[2:])\n"
        "sys.stdout.write(run.wait_change(1, 60.0).state + '\\n')\n"
        "sys.stdout.flush()\n"
        "run.wait_change(2, 600.0)\n"
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
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) >= 3  # supervisor, node process, worker
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: not any(map(is_alive, family)), "the daemon is gone")
