"""File systems that do not respond: of one served dataset among others, and of commands."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.dataset.opened import Dataset
from feeder.wire.messages import Failed, NodeMessage
from tests.faults.client import fetch
from tests.support.daemon import (
    DEADLINE_S,
    SAMPLES,
    RawClient,
    customised,
    runs,
    serve,
    small_recipe,
    wait_until,
)
from tests.support.hanging_fs import HangingFolder, hanging_folder
from tests.support.sources import REPOSITORY, feeder_command, make_source, pack

SHORT_DEADLINES = """
import sys
if "feeder" in sys.orig_argv:
    from feeder.dataset import first_read
    assert first_read.check_readable.__defaults__ == (30.0,)
    first_read.check_readable.__defaults__ = (3.0,)
if "feeder.node" in sys.orig_argv:
    from feeder.session import worker_watch as watch
    assert (watch.CHUNK_DEADLINE_S, watch.UNANSWERED_S) == (30.0, 36.0)
    watch.CHUNK_DEADLINE_S, watch.UNANSWERED_S = 5.0, 14.0
    watch.POLICY = watch.Policy(
        look_s=watch.LOOK_S, silent_s=watch.SILENT_S, stopped_s=watch.DEADLINE_MIN_S, most_s=5.0
    )
"""
"""Deadlines of file systems that do not respond: 27 s less for commands, 22 s less in a daemon."""

SHARDS = tuple(f"shard-{number:05d}.fds" for number in range(20))


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of more shards than a command probes before it begins."""
    folder = tmp_path_factory.mktemp("many")
    source = make_source(folder / "source", SAMPLES, side=72)
    pack(source, folder / "dataset", shards=len(SHARDS))
    return folder / "dataset"


@pytest.fixture
def disk(many_shards: Path, tmp_path: Path) -> Iterator[HangingFolder]:
    with hanging_folder(many_shards, tmp_path / "disk") as folder:
        yield folder


def next_failure(client: RawClient) -> Failed:
    message: NodeMessage = client.receive()
    while not isinstance(message, Failed):
        message = client.receive()
    return message


def test_stalled_dataset_delays_no_other_and_recovers(
    packed: Path, many_shards: Path, disk: HangingFolder, tmp_path: Path
) -> None:
    options = ("--chunk-images", "4", "--decoded-bytes", "0", "--lease-s", "600")
    recipe = small_recipe()
    with (
        serve(
            disk.path,
            *("--data", f"e={packed}", *options),
            environ=customised(tmp_path / "site", SHORT_DEADLINES),
        ) as daemon,
        RawClient(daemon.endpoint) as stalled,
        RawClient(daemon.endpoint) as healthy,
        Dataset.open(packed) as dataset,
        Dataset.open(many_shards) as mirrored,
    ):
        try:
            stalled.hello(recipe, dataset="d")
            healthy.hello(recipe, dataset="e")
            fetch(stalled, mirrored, (0, 0))
            workers = daemon.workers()
            disk.hang(SHARDS)
            stalled.want((0, 1), (0, 2), release=((0, 0),))
            wait_until(
                lambda: all(each.status() == psutil.STATUS_DISK_SLEEP for each in workers),
                "all workers wait for the disk",
            )
            for epoch in range(8):  # served although both workers are stuck
                fetch(healthy, dataset, (epoch, 0))
                healthy.want(release=((epoch, 0),))
                if epoch == 0:  # a busy machine may take longer for all eight than a chunk may take
                    assert not stalled.socket.poll(0), "the stalled batch is still pending"
            counters = daemon.counters()
            assert counters["datasets_stalled"] == 1
            assert counters["workers_held"] >= 1, "a worker that cannot be killed was replaced"
            assert [process.is_running() for process in workers] == [True, True]
            daemon.wait_line("stuck, reading dataset d: ended")
            failed = next_failure(stalled)
            assert failed.code == "dataset"
            assert "dataset d cannot be read: no answer in 14 s" in failed.message
            fetch(healthy, dataset, (9, 0))
            disk.answer()
            wait_until(
                lambda: daemon.counters()["workers_held"] == 0, "the stuck workers have ended"
            )
            stalled.hello(recipe, dataset="d")
            fetch(stalled, mirrored, (1, 0))
            wait_until(
                lambda: daemon.counters()["datasets_stalled"] == 0, "the dataset has recovered"
            )
        finally:
            disk.answer()


def test_commands_name_a_dataset_that_does_not_respond(disk: HangingFolder, tmp_path: Path) -> None:
    disk.hang(["manifest.json"])
    commands = {
        "verify": ("verify", disk.path),
        "unpack": ("unpack", disk.path, tmp_path / "out"),
        "repack": ("repack", disk.path, tmp_path / "new"),
        "serve": ("serve", "--data", f"d={disk.path}", "--bind", f"ipc://{tmp_path}/s"),
    }
    environment = os.environ | customised(tmp_path / "site", SHORT_DEADLINES)
    started = {
        name: subprocess.Popen(
            feeder_command(*arguments),
            cwd=REPOSITORY,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, arguments in commands.items()
    }
    for name, process in started.items():
        _, printed = process.communicate(timeout=2 * DEADLINE_S)
        lines = [line for line in printed.splitlines() if line.startswith("feeder: error: ")]
        assert len(lines) == 1, (name, printed)
        assert str(disk.path) in lines[0]
        assert "cannot be read: no answer in 3 s, is its file system alive?" in lines[0]
        assert process.returncode == 4, "a temporary failure, which systemd retries"


def test_interrupt_ends_a_command_whose_workers_are_stuck(disk: HangingFolder) -> None:
    disk.hang(SHARDS[-2:])
    with subprocess.Popen(
        feeder_command("verify", disk.path, "--jobs", "2"),
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        parent = psutil.Process(process.pid)

        def waits() -> bool:
            return any(
                child.status() == psutil.STATUS_DISK_SLEEP
                for child in parent.children()
                if runs(child, "feeder.pack.task_pool")  # not the one that probed the disk first
            )

        try:
            wait_until(waits, "a worker process waits for the disk")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 128 + signal.SIGINT
        finally:
            disk.answer()
