"""A small suite of which test_starve.py runs single tests under `tests.support.starve`.

Each test waits until it sees the expected effect, and so never ends if there is none.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TURN_S: Final = 0.002  # a hold lasts up to a second

_TWO_THREADS = f"""
import os, sys, threading, time

def run():
    while os.getppid() == int(sys.argv[1]):
        time.sleep({_TURN_S})

threading.Thread(target=run).start()
run()
"""
KINDS = ("stop one", "stop all", "starve one", "starve all")


@contextmanager
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process with two threads, which ends with this one."""
    command = [sys.executable, "-c", _TWO_THREADS, str(os.getpid())]
    with subprocess.Popen(command) as process:
        try:
            _wait(lambda: len(_threads(process.pid)) == 2)
            yield process
        finally:
            process.kill()


def tracer_of(thread: int) -> int:
    """Return the pid of the process that traces a thread, 0 if there is none."""
    return int(_status(thread)["TracerPid"])


def is_stopped_by(tool: int, thread: int) -> bool:
    """Return whether ``tool`` has stopped a thread."""
    return tracer_of(thread) == tool and _status(thread)["State"].startswith("t")


def test_every_kind_is_seen_and_an_unrelated_process_is_not_touched() -> None:
    tool, unrelated = os.getppid(), int(os.environ["UNRELATED"])
    wanted, seen = set(os.environ["WANTED"].split(",")), set()
    with child() as process:
        first, second = _threads(process.pid)
        while not wanted <= seen:
            for kind, is_held in (
                ("stop", lambda thread: is_stopped_by(tool, thread)),
                ("starve", lambda thread: os.sched_getscheduler(thread) == os.SCHED_IDLE),
            ):
                found = [is_held(thread) for thread in (first, second, first)]
                if found[0] == found[2] and any(found):
                    seen.add(f"{kind} {'all' if all(found) else 'one'}")
            assert tracer_of(unrelated) != tool
            time.sleep(_TURN_S)


def test_process_stopped_before_stays_stopped() -> None:
    tool = os.getppid()
    with child() as process:
        process.send_signal(signal.SIGSTOP)
        first, _ = _threads(process.pid)
        _wait(lambda: is_stopped_by(tool, first))
        _wait(lambda: not is_stopped_by(tool, first))
        # Its state passes through R, although it runs no instruction.
        _wait(lambda: _status(first)["State"].startswith("T"))


def test_process_killed_while_stopped_is_reaped() -> None:
    tool = os.getppid()
    with child() as process:
        _wait(lambda: any(is_stopped_by(tool, thread) for thread in _threads(process.pid)))
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_that_fails() -> None:
    raise AssertionError("fails on purpose")


def test_that_never_ends() -> None:
    with child() as process:
        Path(os.environ["PID_FILE"]).write_text(str(process.pid))
        process.wait()


def _wait(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(_TURN_S)


def _threads(process: int) -> list[int]:
    return sorted(map(int, os.listdir(f"/proc/{process}/task")))


def _status(thread: int) -> dict[str, str]:
    lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)
