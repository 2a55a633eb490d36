"""Special ways for processes to die; test_fault_matrix covers each process at each phase."""

import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from feeder.client.stats import request_report
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.wire.messages import Failed, Welcome
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    client_process,
    node_processes,
    pack_small,
    small_recipe,
    wait_until,
)
from tests.support.sources import error_line, run_feeder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("deaths"))


@pytest.fixture(scope="module")
def dataset(packed: Path) -> Iterator[Dataset]:
    with Dataset.open(packed) as opened:
        yield opened


AS_INIT = (
    *(sys.executable, "-c"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Makes a process the reaper of its orphaned descendants, as PID 1 of a container is."""


def serve(
    packed: Path,
    *more: str,
    bind: str = "tcp://127.0.0.1:0",
    prefix: Sequence[str] = (),
    **environ: str,
) -> Daemon:
    return Daemon(
        *("--data", f"d={packed}", "--bind", bind, "--workers", "2", "--chunk-images", "4", *more),
        environ=environ,
        prefix=prefix,
    )


def test_killed_node_process_is_restarted_on_its_port(packed: Path, dataset: Dataset) -> None:
    """Also in a container without an init, where its workers become children of the supervisor."""
    recipe = small_recipe()
    with serve(packed, prefix=AS_INIT) as daemon:
        node, workers = daemon.node, daemon.workers()
        with RawClient(daemon.endpoint) as client:
            client.hello(recipe)
            client.want((0, 0))
            client.take((0, 0))
            node.kill()
            daemon.wait_line("node process 0 serves again")
            client.await_no_session()  # the socket has reconnected
            assert isinstance(client.hello(recipe), Welcome)
            client.want((0, 1))
            check_batch(dataset, recipe, (0, 1), client.take((0, 1)))
        for process in (node, *workers):
            wait_until(lambda p=process: not p.is_running(), f"{process} has ended")  # type: ignore[misc]
        daemon.family()


def test_slots_of_a_killed_client_are_reclaimed(packed: Path) -> None:
    with serve(packed, "--lease-s", "20") as daemon:
        with client_process(daemon.endpoint, small_recipe(), [(0, 0), (0, 1)]):
            assert daemon.counters()["slots_committed_bytes"] > 0
        wait_until(lambda: daemon.counters()["sessions"] == 0, "its session has ended")
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")
        counters = daemon.counters()
        assert counters["sessions_expired"] + counters["sessions_lost"] == 1


def test_stopped_client_delays_no_other_and_its_memory_is_bounded(
    packed: Path, dataset: Dataset
) -> None:
    large = small_recipe(batch_size=16, image_size=320, resize_size=320)  # 4.9 MB a batch
    recipe = small_recipe()
    with serve(packed, "--lease-s", "6") as daemon:
        keys = [(epoch, index) for epoch in range(3) for index in range(3)]
        with client_process(daemon.endpoint, large, keys[:8]) as client:
            client.send_signal(signal.SIGSTOP)
            budget = daemon.counters()["slots_committed_bytes"]
            with RawClient(daemon.endpoint) as other:
                other.hello(recipe)
                for epoch in range(3):
                    other.want((epoch, 0))
                    check_batch(dataset, recipe, (epoch, 0), other.take((epoch, 0)))
                    other.want(release=((epoch, 0),))
                other.bye()
            wait_until(lambda: daemon.counters()["sessions"] == 0, "its lease has expired")
            assert daemon.counters()["slots_committed_bytes"] <= budget
            assert daemon.node.memory_info().rss < budget + (150 << 20)
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")


def test_node_process_with_a_session_notices_its_own_stalls(packed: Path, tmp_path: Path) -> None:
    """It wakes up without being asked to, over ipc too; ``test_service`` has what follows."""
    with (
        serve(packed, "--lease-s", "600", bind=f"ipc://{tmp_path}/s") as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        client.hello(small_recipe())
        before = daemon.node.num_ctx_switches().voluntary
        wait_until(lambda: daemon.node.num_ctx_switches().voluntary > before + 9, "it wakes up")


def test_socket_file_of_a_killed_daemon_is_replaced(packed: Path, tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/s"
    with serve(packed, bind=bind) as daemon:
        daemon.node.suspend()  # else it may see the channel end before it is killed, and clean up
        daemon.process.kill()
        daemon.wait_gone()
    assert (tmp_path / "s").exists()
    with serve(packed, bind=bind) as daemon:
        assert daemon.counters()["batches"] == 0
        daemon.stop()
    assert not (tmp_path / "s").exists()


def test_missing_library_is_one_error_line_without_restarts(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "turbojpeg.py").write_text("raise ModuleNotFoundError(name='turbojpeg')\n")
    environ = {"PYTHONPATH": str(tmp_path)}
    arguments = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0")
    with Daemon(*arguments, environ=environ, is_ready=False) as daemon:
        line = daemon.wait_line("^feeder: error: ")
        assert "turbojpeg is not installed" in line
        assert daemon.process.wait(DEADLINE_S) == 4
        assert len([line for line in daemon.lines if "error" in line]) == 1


def test_daemon_ends_when_workers_keep_dying_at_start(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'feeder.worker' in sys.orig_argv:\n    os._exit(7)\n"
    )
    environ = {"PYTHONPATH": str(tmp_path)}
    arguments = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0")
    with Daemon(*arguments, environ=environ, is_ready=False) as daemon:
        line = daemon.wait_line("^feeder: error: ")
        assert "workers in a row ended while starting, the last one ended with status 7" in line
        assert daemon.process.wait(DEADLINE_S) == 4


def test_daemon_ends_when_node_processes_keep_crashing(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'feeder.node' in sys.orig_argv:\n    os.kill(os.getpid(), 11)\n"
    )
    environ = {"PYTHONPATH": str(tmp_path)}
    arguments = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0")
    with Daemon(*arguments, environ=environ, is_ready=False) as daemon:
        line = daemon.wait_line("^feeder: error: ", 60)
        assert "crashed 6 times within 60 s; the last one was ended by signal 11" in line
        assert daemon.process.wait(DEADLINE_S) == 4


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


def test_node_process_restart_is_retried_until_descriptors_are_available(
    packed: Path, dataset: Dataset
) -> None:
    with serve(packed) as daemon:
        supervisor = psutil.Process(daemon.process.pid)
        before = supervisor.rlimit(psutil.RLIMIT_NOFILE)
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (supervisor.num_fds(), before[1]))
        daemon.node.kill()
        daemon.wait_line("node process 0 cannot be started: .*; trying again in ")
        supervisor.rlimit(psutil.RLIMIT_NOFILE, before)
        daemon.wait_line("node process 0 serves again")
        fetch_one(daemon, dataset)


def test_worker_restart_is_retried_until_it_succeeds(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if 'feeder.worker' in sys.orig_argv and os.path.exists({str(missing)!r}):\n"
        "    sys.modules['turbojpeg'] = None\n"
    )
    with serve(packed, PYTHONPATH=str(tmp_path)) as daemon:
        first, second = daemon.workers()
        missing.touch()
        first.kill()
        assert "turbojpeg is not installed" in daemon.wait_line("worker 3 cannot start: ")
        wait_until(
            lambda: daemon.counters()["worker_starts_failed"] > 1, "a second attempt has failed"
        )
        fetch_one(daemon, dataset)
        missing.unlink()
        second.kill()
        fetch_one(daemon, dataset)
        assert len([line for line in daemon.lines if "cannot start: " in line]) == 1


def fetch_one(daemon: Daemon, dataset: Dataset, name: str = "d") -> None:
    recipe = small_recipe()
    with RawClient(daemon.endpoint) as client:
        client.hello(recipe, dataset=name)
        client.want((0, 0))
        check_batch(dataset, recipe, (0, 0), client.take((0, 0)))


def test_damaged_sample_fails_its_batch_with_the_shards_name(packed: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in packed.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    shard = damaged / "shard-00002.fds"
    content = bytearray(shard.read_bytes())
    content[64 + 3000] ^= 0xFF  # in the blob of its first or second sample
    shard.write_bytes(content)
    recipe = small_recipe("val", batch_size=53)
    with serve(damaged) as daemon, RawClient(daemon.endpoint) as client:
        client.hello(recipe)
        client.want((0, 0))
        while not isinstance(message := client.receive(), Failed):
            pass
        assert message.code == "dataset"
        assert "shard-00002.fds" in message.message
        assert "feeder verify" in message.message
        counters = daemon.counters()
        assert (counters["batches_failed.bad-sample"], counters["bad_samples"]) == (1, 1)
    done = run_feeder("serve", "--data", f"d={damaged}/manifest.json")
    assert done.returncode == 3
    assert error_line(done)


def test_workers_and_node_process_ignore_a_terminal_interrupt(packed: Path) -> None:
    with serve(packed) as daemon:
        before = {process.pid for process in daemon.family()}
        for process in [daemon.node, *daemon.workers()]:
            process.send_signal(signal.SIGINT)
        for process in daemon.workers():
            process.send_signal(signal.SIGTERM)
        assert daemon.counters()["worker_restarts"] == 0
        assert {process.pid for process in daemon.family()} == before
        status, _ = daemon.stop(signal.SIGINT)
        assert status == 0
        daemon.wait_gone()


def test_processes_that_are_starting_ignore_a_terminal_interrupt(packed: Path) -> None:
    options = ("--workers", "3", "--bind", f"ipc://{packed.parent}/s")
    with Daemon("--data", f"d={packed}", *options, is_ready=False) as daemon:
        supervisor = psutil.Process(daemon.process.pid)
        wait_until(lambda: node_processes(supervisor), "a node process has started")
        (node,) = node_processes(supervisor)
        node.send_signal(signal.SIGINT)
        wait_until(lambda: len(node.children()) == 3, "the workers have started")
        for worker in node.children():
            worker.send_signal(signal.SIGTERM)
        daemon.wait_line("ready")
        assert not any("ended" in line or "KeyboardInterrupt" in line for line in daemon.lines)
