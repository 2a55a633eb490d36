"""Other processes that use the CPUs, from two looks at /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

from feeder.host.neighbours import NeighbourFinder
from tests.support.daemon import wait_until

TICKS_A_S = os.sysconf("SC_CLK_TCK")


def put(proc: Path, pid: int, name: str, cpu_s: float, *, parent: int = 1) -> None:
    ticks = round(cpu_s * TICKS_A_S)
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    words = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20"
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
    put(tmp_path, 3, "other", 0.0)
    finder.look((), 100.0)
    put(tmp_path, 3, "other", 1.0)
    put(tmp_path, 10, "feeder", 2.0)
    put(tmp_path, 11, "worker", 2.0, parent=10)
    put(tmp_path, 20, "trainer", 2.0)
    assert [pid for _, pid, _ in finder.look({10, 20}, 101.0)] == [3]


def test_a_busy_loop_of_this_machine_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            finder = NeighbourFinder()

            def is_named() -> bool:
                return loop.pid in [pid for _, pid, _ in finder.look((), time.monotonic())]

            wait_until(is_named, "the loop is named")
        finally:
            loop.kill()
