"""What the kernel shows of real processes, and of made-up ones; which are busiest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.host.processes import (
    NeighbourFinder,
    ProcessStat,
    look_at,
    parse_stat,
)
from feeder.metrics.hangs import KernelState, ProcessLook
from tests.support.daemon import wait_until
from tests.support.machine_tree import write_tree

TICKS_A_S = os.sysconf("SC_CLK_TCK")
LINE = b"7 (a) b) %s 3 1 1 0 -1 0 1 2 3 4 150 25 0 0 20 0 3 0 99 1 2"
LATER = b" 0" * 14 + b" 5 0 0"
IO = "rchar: 9000\nwchar: 1\nread_bytes: 4096\nwrite_bytes: 0"


def test_state_cpu_time_last_cpu_and_parent() -> None:
    cpu_s = 175 / TICKS_A_S
    assert parse_stat(LINE % b"R" + LATER) == ProcessStat("runs", cpu_s, 5, 3)
    assert parse_stat(b"") is None


def write_process(proc: Path, state: str, **files: str) -> Path:
    """Write what /proc shows of process 7: its line, and more files of it."""
    line = (LINE % state.encode() + LATER).decode()
    names = {"stat": line, "task/7/stat": line, "task/7/wchan": "0", **files}
    return write_tree(proc, {f"7/{name}": text for name, text in names.items()})


def test_a_process_is_read(tmp_path: Path) -> None:
    proc = write_process(tmp_path, "T", schedstat="5000000 1500000000 12", io=IO)
    assert look_at(7, proc) == ProcessLook(
        state="stopped",
        cpu_s=0.005,
        requested_bytes=9000,
        read_bytes=4096,
        run_delay_s=1.5,
        cpu=5,
    )


def test_files_that_are_missing_leave_zeros(tmp_path: Path) -> None:
    write_process(tmp_path, "S")
    (tmp_path / "7/task/7/wchan").unlink()
    assert look_at(7, tmp_path) == ProcessLook("sleeps", 175 / TICKS_A_S, cpu=5)
    assert look_at(41, tmp_path) is None, "it has ended"


@pytest.mark.parametrize(
    ("letter", "wchan", "state"),
    [
        ("R", "0", "runs"),
        ("S", "0", "sleeps"),
        ("S", "request_wait_answer", "storage"),
        ("S", "rpc_wait_bit_killable", "storage"),
        ("D", "folio_wait_bit_common", "storage"),
        ("T", "do_signal_stop", "stopped"),
        ("t", "ptrace_stop", "traced"),
        ("Z", "0", "ended"),
    ],
)
def test_states(tmp_path: Path, letter: str, wchan: str, state: KernelState) -> None:
    look = look_at(7, write_process(tmp_path, letter, **{"task/7/wchan": wchan}, io=IO))
    assert look == ProcessLook(state, 175 / TICKS_A_S, 9000, 4096, cpu=5)


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


def put(proc: Path, pid: int, name: str, cpu_s: float, *, parent: int = 1) -> None:
    ticks = round(cpu_s * TICKS_A_S)
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    words = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} {'0 ' * 25}"
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {words}\n")


def test_the_busiest_processes_since_the_last_look_are_named(tmp_path: Path) -> None:
    put(tmp_path, 5, "old", 1000.0)
    put(tmp_path, 6, "make) (x", 10.0)
    put(tmp_path, 7, "gone", 10.0)
    (tmp_path / "self").mkdir()
    finder = NeighbourFinder(tmp_path)
    assert finder.look((), 100.0) == ()
    put(tmp_path, 5, "old", 1000.05)
    put(tmp_path, 6, "make) (x", 13.0)
    put(tmp_path, 8, "new\x1b[31m", 1.0)
    (tmp_path / "7" / "stat").unlink()
    assert finder.look((), 102.0) == (
        ("make) (x", 6, 1.5),
        ("new\\x1b[31m", 8, 0.5),
    )


def test_the_daemon_its_children_and_its_clients_are_no_neighbours(tmp_path: Path) -> None:
    finder = NeighbourFinder(tmp_path)
    others = {3: 1.0, 4: 1.5, 5: 0.5, 6: 0.8}
    for pid in others:
        put(tmp_path, pid, "other", 0.0)
    finder.look((), 100.0)
    for pid, cpu_s in others.items():
        put(tmp_path, pid, "other", cpu_s)
    put(tmp_path, 10, "feeder", 2.0)
    put(tmp_path, 11, "worker", 2.0, parent=10)
    put(tmp_path, 20, "trainer", 2.0)
    assert [pid for _, pid, _ in finder.look({10, 20}, 101.0)] == [4, 3, 6], "the busiest"
