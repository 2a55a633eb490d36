"""What the kernel shows of real processes, and of made-up ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.host.process_state import look_at
from feeder.metrics.hangs import KernelState, ProcessLook
from tests.support.daemon import wait_until

LINE = "7 (a) b) %s 1 1 1 0 -1 0 1 2 3 4 150 25 0 0 20 0 3 0 99 1 2"


def write_process(proc: Path, pid: int, state: str, wchan: str = "0") -> None:
    """Write what /proc shows of a process."""
    task = proc / f"{pid}/task/{pid}"
    task.mkdir(parents=True)
    (task / "stat").write_text(LINE % state)
    (task / "wchan").write_text(wchan)


@pytest.mark.parametrize(
    ("letter", "wchan", "state"),
    [
        ("R", "0", "runs"),
        ("S", "0", "sleeps"),
        ("S", "hrtimer_nanosleep", "sleeps"),
        ("S", "request_wait_answer", "storage"),
        ("S", "rpc_wait_bit_killable", "storage"),
        ("D", "folio_wait_bit_common", "storage"),
        ("T", "do_signal_stop", "stopped"),
        ("t", "ptrace_stop", "traced"),
        ("Z", "0", "ended"),
    ],
)
def test_states(tmp_path: Path, letter: str, wchan: str, state: KernelState) -> None:
    write_process(tmp_path, 7, letter, wchan)
    look = look_at(7, tmp_path)
    assert look == ProcessLook(state, 175 / os.sysconf("SC_CLK_TCK"))


def test_a_kernel_without_wait_functions_shows_a_sleep(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "S")
    (tmp_path / "7/task/7/wchan").unlink()
    look = look_at(7, tmp_path)
    assert look is not None
    assert look.state == "sleeps"


def test_a_line_of_another_form_shows_nothing(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "?")
    assert look_at(7, tmp_path) is None


def test_real_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:

            def state() -> str:
                look = look_at(process.pid)
                return "" if look is None else look.state

            wait_until(lambda: getattr(look_at(process.pid), "cpu_s", 0.0) > 0.1, "it has run")
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: state() == "stopped", "it is stopped")
            assert look_at(process.pid) == look_at(process.pid), "it uses no CPU time"
            process.kill()
            wait_until(lambda: state() == "ended", "it has ended")
        finally:
            process.kill()
    assert look_at(process.pid) is None
