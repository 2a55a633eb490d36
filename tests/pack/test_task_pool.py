"""Worker processes: each task once, errors reach the parent, none is left; the progress line."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import choose_jobs, run_tasks

_MODULE = """
import os, signal
import msgspec
from feeder.errors import DatasetError

class Setup(msgspec.Struct):
    add: int

class Task(msgspec.Struct):
    kind: str
    number: int

def perform(setup, task, report):
    kind = task.kind
    if kind == "dataset":
        raise DatasetError("sample 7 is bad")
    if kind == "disk":
        raise OSError(28, "No space left on device", "/x")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crash":
        os._exit(7)
    if kind == "hang":
        signal.pause()
    report.send(half=task.number)
    report.add(count=1)
    return {"square": task.number ** 2 + setup.add, "pid": os.getpid()}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with tasks of every kind that workers can import."""
    (tmp_path / "pool_tasks.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "pool_tasks"


class Setup(msgspec.Struct):
    add: int


class Task(msgspec.Struct):
    kind: str
    number: int


def _run(module: str, kinds: list[str], jobs: int) -> list[dict[str, Any]]:
    tasks = [Task(kind, number) for number, kind in enumerate(kinds)]
    # Earlier tests in this process may have started multiprocessing's resource tracker.
    children, files = set(psutil.Process().children()), psutil.Process().num_fds()
    try:
        return list(run_tasks(module, Setup(5), tasks, jobs=jobs))
    finally:
        assert set(psutil.Process().children()) <= children
        assert psutil.Process().num_fds() <= files


def test_every_task_is_done_once_by_the_requested_number_of_processes(module: str) -> None:
    messages = _run(module, ["square"] * 9, jobs=2)
    done = [message for message in messages if message["kind"] == "done"]
    assert sorted(message["square"] for message in done) == [n**2 + 5 for n in range(9)]
    assert sum(message.get("count", 0) for message in messages) == 9
    halves = [message["half"] for message in messages if "half" in message]
    assert sorted(halves) == [*range(9)]
    pids = {message["pid"] for message in done}
    assert os.getpid() not in pids
    assert len(pids) <= 2


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("dataset", DatasetError, "sample 7 is bad"),
        ("disk", OSError, "No space left"),
        ("die", ResourceError, r"died \(SIGKILL\)"),
        ("crash", ResourceError, r"died \(exit status 7\)"),
        ("hang", ResourceError, r"sent nothing for 2 s: check that its disk responds, then run"),
    ],
)
def test_errors_and_deaths_reach_the_parent_and_end_the_other_workers(
    module: str,
    kind: str,
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind == "hang":
        monkeypatch.setattr("feeder.pack.task_pool._STALL_S", 2.0)
    with pytest.raises(error, match=message):
        _run(module, ["square", kind, "square", "square"], jobs=2)


def test_orphaned_worker_exits(tmp_path: Path) -> None:
    """The parent died before PR_SET_PDEATHSIG was set, and another process adopted the worker."""
    result = subprocess.run(
        [sys.executable, "-m", "feeder.pack.task_pool", "0", "1", "pool_tasks"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_jobs_default_to_the_usable_cpus() -> None:
    assert choose_jobs(3) == 3
    assert 1 <= choose_jobs(None) <= (os.cpu_count() or 1)
    with pytest.raises(ConfigError, match=r"--jobs 5000 is not within 1 \.\. 4096"):
        choose_jobs(5000)


# The progress line: its content, on terminals and in logs


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rate_and_remaining_time_ignore_work_of_earlier_runs() -> None:
    clock = _Clock()
    line = ProgressLine(io.StringIO(), clock)
    line.begin("packing", "images", 1000, done=400)
    clock.now_s += 10
    line.add(200, 22_000_000, quarantined=3)
    assert line.line() == (
        "packing 600/1,000 images (60 %), 20 images/s, 2.2 MB/s, 3 quarantined, 0:20 left"
    )


def test_terminal_is_redrawn_in_place_and_logs_get_few_lines() -> None:
    for stream, expected in ((_Terminal(), 51), (io.StringIO(), 2)):
        clock = _Clock()
        line = ProgressLine(stream, clock)
        line.begin("packing", "images", 100)
        line.note("before")
        for _ in range(100):
            clock.now_s += 0.11  # eleven seconds in all
            line.add(1)
        line.end()
        text = stream.getvalue().removeprefix("before\n")
        assert text.count("packing") == expected
        assert text.count("\n") == (1 if stream.isatty() else expected)
        assert text.count("\r") == (expected if stream.isatty() else 0)
        if stream.isatty():
            line.add(0)
            clock.now_s += 1
            line.add(0)
            line.note("a note replaces a drawn line")
            assert stream.getvalue().endswith("\r\x1b[Ka note replaces a drawn line\n")
