"""What `make test-starved` holds, that it lets go of it, and how it ends."""

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

_GOES_ON = (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
_NOT_PASSED_ON = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")


@contextmanager
def starved(
    test: str, *, minutes: float = DEADLINE_S / 60, busy_loops: int = 0, **environ: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """The tool, which runs a test of ``starved_example``.

    Its busy loops are off unless a test is about them: they would take the processor from the
    tests that run beside this one.
    """
    inherited = {name: text for name, text in os.environ.items() if name not in _NOT_PASSED_ON}
    with subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "tests.support.starve",
                "--seed",
                "1",
                "--minutes",
                str(minutes),
            ),
            *("--busy-loops", str(busy_loops)),
            *("-q", "-p", "no:cacheprovider", f"tests/support/starved_example.py::{test}"),
        ],
        cwd=REPOSITORY,
        env={**inherited, **environ},
    ) as tool:
        try:
            yield tool
        finally:
            tool.kill()


def test_processes_and_single_threads_stop_and_starve_and_no_others() -> None:
    wanted = [kind for kind in starved_example.KINDS if may_starve() or "starve" not in kind]
    with (
        starved_example.child() as bystander,
        starved(
            "test_every_kind_is_seen_and_a_bystander_is_left_alone",
            WANTED=",".join(wanted),
            BYSTANDER=str(bystander.pid),
        ) as tool,
    ):
        assert tool.wait() == 0


def test_a_process_that_a_test_has_stopped_stays_stopped() -> None:
    with starved("test_a_process_that_was_stopped_before_stays_stopped") as tool:
        assert tool.wait() == 0


def test_a_process_that_is_killed_while_it_is_stopped_can_be_waited_for() -> None:
    with starved("test_a_process_that_is_killed_while_it_is_stopped_is_reaped") as tool:
        assert tool.wait() == 0


def test_the_exit_status_is_that_of_pytest() -> None:
    with starved("test_that_fails") as tool:
        assert tool.wait() == pytest.ExitCode.TESTS_FAILED


def test_a_suite_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    with starved("test_that_never_ends", minutes=0.001, PID_FILE=str(tmp_path / "pid")) as tool:
        assert tool.wait() == 124


def test_nothing_stays_stopped_when_the_tool_is_killed(tmp_path: Path) -> None:
    with holding(tmp_path) as (tool, child):
        (suite,) = child.parents()[:1]
        busy_loops = [each for each in psutil.Process(tool.pid).children() if each != suite]
        assert busy_loops
        tool.kill()
        tool.wait()
        try:
            wait_until(lambda: child.status() in _GOES_ON, "it goes on")
            wait_until(lambda: not any(map(is_alive, busy_loops)), "the busy loops have ended")
        finally:
            suite.kill()
        wait_until(lambda: not is_alive(child), "it ends with the suite")


def test_a_signal_ends_the_suite_with_the_tool(tmp_path: Path) -> None:
    with holding(tmp_path) as (tool, child):
        tool.terminate()
        psutil.Process(tool.pid).resume()
        assert tool.wait() == 128 + signal.SIGTERM
        wait_until(lambda: not is_alive(child), "it has ended")


@contextmanager
def holding(folder: Path) -> "Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]":
    """The tool, itself stopped while it holds a process, and that process."""
    written = folder / "pid"
    with starved("test_that_never_ends", busy_loops=1, PID_FILE=str(written)) as tool:
        wait_until(lambda: written.exists() and written.read_text(), "the child has begun")
        child, itself = psutil.Process(int(written.read_text())), psutil.Process(tool.pid)

        def is_caught() -> bool:
            stop(itself)
            if starved_example.is_stopped_by(tool.pid, child.pid):
                return True
            itself.resume()
            return False

        wait_until(is_caught, "the child is held")
        yield tool, child
