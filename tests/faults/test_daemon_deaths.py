"""Special ways for processes to die; test_fault_matrix covers each process at each phase."""

import shutil
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from feeder.client.stats import request_report
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.wire.messages import Welcome
from tests.faults.client import fetch
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    client_process,
    customised,
    node_processes,
    serve,
    small_recipe,
    wait_until,
)

AS_INIT = (
    *(sys.executable, "-c"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Makes a process the reaper of its orphaned descendants, as PID 1 of a container is."""


def test_killed_node_process_is_restarted_on_its_port(packed: Path, dataset: Dataset) -> None:
    """Also in a container without an init, where its workers become children of the supervisor."""
    recipe = small_recipe()
    with serve(packed, prefix=AS_INIT) as daemon:
        node, workers = daemon.node, daemon.workers()
        with RawClient(daemon.endpoint) as client:
            client.hello(recipe)
            fetch(client, dataset, (0, 0))
            node.kill()
            daemon.wait_line("node process 0 serves again")
            client.await_no_session()  # the socket has reconnected
            assert isinstance(client.hello(recipe), Welcome)
            fetch(client, dataset, (0, 1))
        for process in (node, *workers):
            wait_until(lambda p=process: not p.is_running(), f"{process} has ended")  # type: ignore[misc]
        daemon.family()


def test_stopped_client_delays_no_other_and_its_memory_is_bounded(
    packed: Path, dataset: Dataset
) -> None:
    large = small_recipe(batch_size=16, image_size=320, resize_size=320)  # 4.9 MB a batch
    recipe = small_recipe()
    with serve(packed, "--chunk-images", "4", "--lease-s", "3") as daemon:
        keys = [(epoch, index) for epoch in range(3) for index in range(3)]
        with client_process(daemon.endpoint, large, keys[:8]) as client:
            client.send_signal(signal.SIGSTOP)
            budget = daemon.counters()["slots_committed_bytes"]
            with RawClient(daemon.endpoint) as other:
                other.hello(recipe)
                for epoch in range(3):
                    fetch(other, dataset, (epoch, 0))
                    other.want(release=((epoch, 0),))
                other.bye()
            wait_until(lambda: daemon.counters()["sessions"] == 0, "its lease has expired")
            assert daemon.counters()["slots_committed_bytes"] <= budget
            assert daemon.node.memory_info().rss < budget + (150 << 20)
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")


def test_a_node_process_is_replaced_once_the_supervisor_has_descriptors(packed: Path) -> None:
    with serve(packed) as daemon:
        supervisor = psutil.Process(daemon.process.pid)
        before = supervisor.rlimit(psutil.RLIMIT_NOFILE)
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (supervisor.num_fds(), before[1]))
        daemon.node.kill()
        daemon.wait_line("node process 0 cannot be started: .*; trying again in ")
        supervisor.rlimit(psutil.RLIMIT_NOFILE, before)
        daemon.wait_line("node process 0 serves again")


@pytest.mark.parametrize(
    ("module", "code", "message"),
    [
        ("feeder.worker", "sys.modules['turbojpeg'] = None", "turbojpeg is not installed"),
        (
            "feeder.worker",
            "os._exit(7)",
            "workers in a row ended while starting, the last one ended with status 7",
        ),
        (
            "feeder.node",
            "os.kill(os.getpid(), 11)",
            "crashed 6 times within 60 s; the last one was ended by signal 11",
        ),
    ],
    ids=["missing library", "workers die at their start", "node processes crash"],
)
def test_what_no_restart_mends_ends_the_daemon_with_one_error_line(
    packed: Path, tmp_path: Path, module: str, code: str, message: str
) -> None:
    code = f"""
import os, sys
if {module!r} in sys.orig_argv:
    {code}
if "feeder" in sys.orig_argv:
    import feeder.process.backoff
    feeder.process.backoff.BACKOFF_MAX_S = 0.5
"""
    with serve(packed, environ=customised(tmp_path, code), is_ready=False) as daemon:
        assert message in daemon.wait_line("^feeder: error: ")
        assert daemon.process.wait(DEADLINE_S) == 4
        assert sum(line.startswith("feeder: error: ") for line in daemon.lines) == 1


def test_a_dataset_that_was_replaced_is_not_served_by_a_node_process_that_restarts(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(packed, folder)
    manifest = folder / MANIFEST_NAME
    original = manifest.read_bytes()
    other = msgspec.structs.replace(load_manifest(folder), odd={"png": 1})
    with serve(packed, "--data", f"e={folder}") as daemon:
        manifest.write_bytes(other.sealed().encode())
        daemon.node.kill()
        line = daemon.wait_line("error: dataset e cannot be served: ")
        reason = (
            f"{manifest} is of another dataset than the one that is served: its fingerprint is "
            f"{load_manifest(folder).fingerprint}, it was {dataset.manifest.fingerprint}; restore "
            "the old one or restart the daemon"
        )
        assert reason in line
        daemon.wait_line("node process 0 serves again")
        fetch_one(daemon, dataset)
        with RawClient(daemon.endpoint) as client:
            refused = client.hello(small_recipe(), dataset="e")
            assert (refused.code, reason in refused.message) == ("dataset", True)
        assert daemon.counters()["datasets_failed"] == 1
        named = "failing-batches: dataset e cannot be served: "
        wait_until(
            lambda: request_report(daemon.endpoint, DEADLINE_S).verdict.text.startswith(named),
            "the verdict names it",
        )
        manifest.write_bytes(original)
        daemon.wait_line("dataset e can be served again: restarting")
        wait_until(lambda: count(daemon, "node process 0 serves again") == 2, "it serves again")
        fetch_one(daemon, dataset, name="e")
        assert count(daemon, "error: dataset e cannot be served") == 1


def count(daemon: Daemon, text: str) -> int:
    return sum(text in line for line in daemon.lines)


def fetch_one(daemon: Daemon, dataset: Dataset, name: str = "d") -> None:
    with RawClient(daemon.endpoint) as client:
        client.hello(small_recipe(), dataset=name)
        fetch(client, dataset, (0, 0))


def test_processes_ignore_a_terminal_interrupt_also_while_they_start(
    packed: Path, tmp_path: Path
) -> None:
    with serve(packed, bind=f"ipc://{tmp_path}/s", workers=3, is_ready=False) as daemon:
        supervisor = psutil.Process(daemon.process.pid)
        wait_until(lambda: node_processes(supervisor), "a node process has started")
        (node,) = node_processes(supervisor)
        node.send_signal(signal.SIGINT)
        wait_until(lambda: len(node.children()) == 3, "the workers have started")
        for worker in node.children():
            worker.send_signal(signal.SIGTERM)
        daemon.wait_line("ready")
        before = {process.pid for process in daemon.family()}
        for process in [node, *daemon.workers()]:
            process.send_signal(signal.SIGINT)
        for process in daemon.workers():
            process.send_signal(signal.SIGTERM)
        daemon.endpoints = [f"ipc://{tmp_path}/s"]
        assert daemon.counters()["worker_restarts"] == 0
        assert {process.pid for process in daemon.family()} == before
        assert not any("ended" in line or "KeyboardInterrupt" in line for line in daemon.lines)
        assert daemon.stop(signal.SIGINT)[0] == 0
        daemon.wait_gone()
