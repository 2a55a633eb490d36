"""What `make test-starved` stops and starves, that it releases it, and its exit status."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.client import stop
from tests.support import starved_example
from tests.support.daemon import DEADLINE_S, is_alive, wait_until
from tests.support.sources import REPOSITORY
from tests.support.starve import may_starve

pytestmark = pytest.mark.extensive("a test tool: make test-starved")

_RUNS = (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
_NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")


@contextmanager
def starved(
    test: str, *, minutes: float = DEADLINE_S / 60, busy_loops: int = 0, **environ: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run the tool on one test of ``starved_example``.

    Busy loops are off by default: they would take processor time from tests that run in parallel.
    """
    inherited = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.support.starve", "--seed", "1"),
            *("--minutes", str(minutes), "--busy-loops", str(busy_loops)),
            *("-q", "-p", "no:cacheprovider", f"tests/support/starved_example.py::{test}"),
        ],
        cwd=REPOSITORY,
        env={**inherited, **environ},
    ) as tool:
        try:
            yield tool
        finally:
            tool.kill()


def test_only_processes_and_threads_of_the_suite_stop_and_starve() -> None:
    wanted = [kind for kind in starved_example.KINDS if may_starve() or "starve" not in kind]
    with (
        starved_example.child() as unrelated,
        starved(
            "test_every_kind_is_seen_and_an_unrelated_process_is_not_touched",
            WANTED=",".join(wanted),
            UNRELATED=str(unrelated.pid),
        ) as tool,
    ):
        assert tool.wait() == 0


@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("test_process_stopped_before_stays_stopped", 0),
        ("test_process_killed_while_stopped_is_reaped", 0),
        ("test_that_fails", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_exit_status_is_that_of_pytest(test: str, status: int) -> None:
    with starved(test) as tool:
        assert tool.wait() == status


def test_suite_that_exceeds_its_time_is_interrupted(tmp_path: Path) -> None:
    with starved("test_that_never_ends", minutes=0.001, PID_FILE=str(tmp_path / "pid")) as tool:
        assert tool.wait() == 124


def test_killed_tool_leaves_nothing_stopped(tmp_path: Path) -> None:
    with holding(tmp_path) as (tool, child):
        (suite,) = child.parents()[:1]
        busy_loops = [each for each in psutil.Process(tool.pid).children() if each != suite]
        assert busy_loops
        tool.kill()
        tool.wait()
        try:
            wait_until(lambda: child.status() in _RUNS, "the child runs again")
            wait_until(lambda: not any(map(is_alive, busy_loops)), "the busy loops have ended")
        finally:
            suite.kill()
        wait_until(lambda: not is_alive(child), "the child ends with the suite")


def test_signal_ends_tool_and_suite(tmp_path: Path) -> None:
    with holding(tmp_path) as (tool, child):
        tool.terminate()
        psutil.Process(tool.pid).resume()
        assert tool.wait() == 128 + signal.SIGTERM
        wait_until(lambda: not is_alive(child), "the child has ended")


@contextmanager
def holding(folder: Path) -> "Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]":
    """Yield the tool, stopped while it holds a process, and that process."""
    written = folder / "pid"
    with starved("test_that_never_ends", busy_loops=1, PID_FILE=str(written)) as tool:
        wait_until(lambda: written.exists() and written.read_text(), "the child has started")
        child, itself = psutil.Process(int(written.read_text())), psutil.Process(tool.pid)

        def is_held() -> bool:
            stop(itself)
            if starved_example.is_stopped_by(tool.pid, child.pid):
                return True
            itself.resume()
            return False

        wait_until(is_held, "the child is held")
        yield tool, child
