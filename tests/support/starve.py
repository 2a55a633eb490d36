"""Runs the test suite beside busy loops, while its processes and threads are stopped at random.

    python -m tests.support.starve [--seed N] [PYTEST ARGUMENT …]

repeatedly picks a process that pytest has started, or a single thread of one, and stops it for up
to HOLD_MAX_S. The exit status is pytest's, or 3 if no thread was ever stopped.

Threads are stopped with ptrace(2), not SIGSTOP: ptrace can stop a single thread; a process that a
test has stopped stays stopped (our SIGCONT would continue it); and when the thread that traces
ends, even by SIGKILL, the kernel continues all that it has stopped.

Invariant: only descendants of the pytest that it started are touched, not that pytest itself. It
only distributes tests (--numprocesses), and waiting for a child that is also traced is error-prone.
"""

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import psutil

HOLD_MAX_S: Final = 1.0
"""The shortest lease is 2 s and clients ping every second: a longer stop may expire sessions."""

_REST_S: Final = 1.0
"""A process then runs for at least this long, so that short stops do not add up to a long one."""

_GAP_MEAN_S: Final = 0.2  # between two picks
_HELD_MAX: Final = 3
_TURN_S: Final = 0.005
_UNDISTURBED: Final = 3  # it passed, but nothing was stopped: this program does not work here

_BUSY_LOOPS: Final = 2 * (os.cpu_count() or 1)
_BUSY_LOOP: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"

_SEIZE, _INTERRUPT = 0x4206, 0x4207  # linux/ptrace.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def run_suite(arguments: Sequence[str], seed: int) -> int:
    """Run pytest under these disturbances; return its exit status."""
    _log(f"seed {seed}, {_BUSY_LOOPS} busy loops")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY_LOOP, str(os.getpid())])
        for _ in range(_BUSY_LOOPS)
    ]
    suite = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal also interrupts pytest
        signal.signal(number, lambda number, _: suite.send_signal(number))
    counts: Counter[str] = Counter()
    try:
        _disturb(suite, random.Random(seed), counts)
        if suite.returncode == 0 and not counts:
            return _UNDISTURBED
        return suite.returncode if suite.returncode >= 0 else 128 - suite.returncode
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
        stops = ", ".join(f"{count} of {extent}" for extent, count in counts.items())
        _log(f"seed {seed}, stopped {stops or 'no thread'}")


def _disturb(suite: "subprocess.Popen[bytes]", chance: random.Random, counts: Counter[str]) -> None:
    """Hold threads of random processes until the suite ends; ``counts`` what was stopped."""
    root, next_s = psutil.Process(suite.pid), 0.0
    free_at_s: dict[int, float] = {}  # by process: after its last stop, and a rest
    while suite.poll() is None:
        now_s = time.monotonic()
        if now_s >= next_s and threading.active_count() <= _HELD_MAX:
            # Always the same number of draws, so that delays do not change later picks.
            gap, where, which, extent, share = (chance.random() for _ in range(5))
            next_s = now_s + 2 * _GAP_MEAN_S * gap
            free = [each for each in _family(root)[1:] if free_at_s.get(each.pid, 0.0) <= now_s]
            threads = _threads_of(free[int(where * len(free))]) if free else []
            if threads:
                pid = threads[0]
                if extent < 0.5:
                    threads = [threads[int(which * len(threads))]]
                free_at_s[pid] = now_s + share * HOLD_MAX_S + _REST_S
                hold = threading.Thread(target=_hold, args=(threads, share * HOLD_MAX_S))
                hold.start()
                counts["one thread" if extent < 0.5 else "all threads"] += 1
        time.sleep(_TURN_S)


def _hold(threads: Sequence[int], seconds: float) -> None:
    """Stop threads of others for as long as this thread, their tracer, lives."""
    for thread in threads:
        if _ptrace(_SEIZE, thread):
            _ptrace(_INTERRUPT, thread)
    time.sleep(seconds)


def _family(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants, oldest first; nothing if it has ended."""
    try:
        return [root, *sorted(root.children(recursive=True), key=lambda each: each.create_time())]
    except psutil.NoSuchProcess:
        return []


def _threads_of(process: psutil.Process) -> list[int]:
    """The main thread, whose number is the process's, comes first; none if it has ended."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{process.pid}/task")), key=process.pid.__ne__)
    except FileNotFoundError:
        return []


def _ptrace(request: int, thread: int) -> bool:
    """Return False if the thread has ended or is about to."""
    return int(_libc.ptrace(request, thread, None, None)) == 0


def _log(text: str) -> None:
    sys.stdout.write(f"starve: {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.starve", allow_abbrev=False)
    parser.add_argument("--seed", type=int, help="of the random picks; random by default")
    options, arguments = parser.parse_known_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    return run_suite(arguments, seed)


if __name__ == "__main__":
    sys.exit(main())
