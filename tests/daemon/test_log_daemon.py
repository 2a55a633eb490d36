"""The log of the real daemon: priorities in the journal, JSON, and ids that a client's log has."""

import json
import logging
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import DEADLINE_S, node_processes, serve, wait_until
from tests.support.sources import REPOSITORY, feeder_command
from trainer_client import NumpyLoader


@contextmanager
def logging_to(log: Path, packed: Path, *arguments: str, as_journal: bool) -> Iterator[int]:
    """A daemon with one worker, whose stderr is a file that may pose as the journal's stream.

    Yields the pid once it is ready, then ends it by SIGTERM.
    """
    with log.open("ab") as file:
        status = os.fstat(file.fileno())
        journal = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"} if as_journal else {}
        endpoint = f"ipc://{log.parent}/s"
        process = subprocess.Popen(
            feeder_command(
                *("serve", "--data", f"d={packed}", "--bind", endpoint, "--workers", "1"),
                *arguments,
            ),
            cwd=REPOSITORY,
            env={**os.environ, **journal},
            stderr=file,
        )
    try:
        wait_until(lambda: "ready, " in log.read_text(), "the daemon is ready")
        yield process.pid
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def kill_a_worker(supervisor: int, log: Path) -> None:
    """Kill the worker, and wait until the node process has logged that."""
    (node,) = node_processes(psutil.Process(supervisor))
    os.kill(node.children()[0].pid, signal.SIGKILL)
    wait_until(lambda: "replaced" in log.read_text(), "the worker's end is logged")


def test_lines_in_the_journal_begin_with_their_priority(packed: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with logging_to(log, packed, as_journal=True) as supervisor:
        kill_a_worker(supervisor, log)
        (node,) = node_processes(psutil.Process(supervisor))
        with open(f"/proc/{node.pid}/fd/2", "wb") as stderr:
            stderr.write(b"a library's line\n")  # as C code writes past logging
    lines = log.read_text().splitlines()
    assert all(re.match(r"<[3467]>", line) for line in lines), lines
    warnings = [line for line in lines if line.startswith("<4>")]
    assert [re.sub(r"\d+", "N", line) for line in warnings] == [
        "<N>feeder: node N: warning: worker N (pid N) was ended by signal N: replaced",
        "<N>a library's line",
    ]
    assert any(line.startswith("<6>feeder: ready, 1 worker serves d at ") for line in lines)


def test_all_lines_of_a_json_log_are_objects(packed: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with logging_to(log, packed, "--log-format", "json", as_journal=False) as supervisor:
        kill_a_worker(supervisor, log)
        pid = node_processes(psutil.Process(supervisor))[0].pid
    bodies = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["time"]) for body in bodies
    )
    (lost,) = [body for body in bodies if body["message"].endswith(": replaced")]
    assert (lost["level"], lost["process"], lost["pid"]) == ("warning", "node 0", pid)
    assert isinstance(lost["worker"], int)
    (ready,) = [body for body in bodies if body["message"].startswith("ready, ")]
    assert (ready["level"], ready["process"], ready["pid"]) == ("info", "supervisor", supervisor)
    assert any(body["message"].startswith("data d: ") for body in bodies), "the start report"


def test_an_error_before_the_start_is_an_object_too(tmp_path: Path) -> None:
    done = subprocess.run(
        feeder_command("serve", "--data", f"d={tmp_path}/missing", "--log-format", "json"),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    (body,) = map(json.loads, done.stderr.splitlines())
    assert (body["level"], body["process"]) == ("error", "supervisor")
    assert f"{tmp_path}/missing" in body["message"]


def test_a_session_has_the_same_id_in_both_logs(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serve(packed, "--log-level", "debug", workers=1, bind=f"ipc://{tmp_path}/s") as daemon:
        loader = NumpyLoader(
            daemon.endpoint,
            dataset="d",
            split="val",
            batch_size=8,
            image_size=32,
            rank=0,
            world_size=1,
        )
        with loader:
            assert len(next(iter(loader)).labels) == 8
        line = daemon.wait_line(r"session [0-9a-f]{8} of .* on d: opened")
        (session,) = re.findall(r"session ([0-9a-f]{8}) of user \d+ on d: opened", line)
        daemon.wait_line(f"session {session} of .* on d: ended")
    assert re.search(rf"batches are read in place.* \(node \S+/0, session {session}\)", caplog.text)
