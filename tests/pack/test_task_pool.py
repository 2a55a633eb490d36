"""Worker processes: tasks run once each, errors reach the parent, no process is left running."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.task_pool import TaskPool, choose_jobs

_MODULE = """
import os, signal
from feeder.errors import DatasetError

def perform(setup, task, report):
    kind = task["kind"]
    if kind == "dataset":
        raise DatasetError("sample 7 is bad")
    if kind == "disk":
        raise OSError(28, "No space left on device", "/x")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crash":
        os._exit(7)
    report({"half": task["number"]})
    return {"square": task["number"] ** 2 + setup["add"], "pid": os.getpid()}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with tasks of every kind that workers can import."""
    (tmp_path / "pool_tasks.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "pool_tasks"


def _run(module: str, kinds: list[str], jobs: int) -> list[tuple[int, str, dict[str, Any]]]:
    tasks = [{"kind": kind, "number": number} for number, kind in enumerate(kinds)]
    # Earlier tests in this process may have started multiprocessing's resource tracker.
    children, files = set(psutil.Process().children()), psutil.Process().num_fds()
    try:
        with TaskPool(module, {"add": 5}, jobs=jobs) as pool:
            return list(pool.run(tasks))
    finally:
        assert set(psutil.Process().children()) <= children
        assert psutil.Process().num_fds() <= files


def test_every_task_is_done_once_by_the_requested_number_of_processes(module: str) -> None:
    events = _run(module, ["square"] * 9, jobs=2)
    done = {number: body for number, kind, body in events if kind == "done"}
    assert {number: body["square"] for number, body in done.items()} == {
        number: number**2 + 5 for number in range(9)
    }
    assert len(events) == 18
    assert os.getpid() not in {body["pid"] for body in done.values()}
    assert len({body["pid"] for body in done.values()}) <= 2


def test_no_tasks_start_no_process(module: str) -> None:
    assert _run(module, [], jobs=2) == []


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("dataset", DatasetError, "sample 7 is bad"),
        ("disk", OSError, "No space left"),
        ("die", ResourceError, r"died \(SIGKILL\)"),
        ("crash", ResourceError, r"died \(exit status 7\)"),
    ],
)
def test_errors_and_deaths_reach_the_parent_and_end_the_other_workers(
    module: str, kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _run(module, ["square", kind, "square", "square"], jobs=2)


def test_processes_that_cannot_be_started_are_a_resource_error(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ResourceError, match=r"no worker process can be started \(No such file"):
        _run(module, ["square"], jobs=1)


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
