"""Runs the test suite beside busy loops, while its processes and threads are stopped at random.

    python -m tests.support.starve [--seed N] [PYTEST ARGUMENT …]

repeatedly picks a process that pytest has started, or a single thread of one, and stops it for up
to HOLD_MAX_S. The exit status is pytest's, or 3 if no thread was ever stopped.

Threads are stopped with ptrace(2), not SIGSTOP: ptrace can stop a single thread; a process that a
test has stopped stays stopped (our SIGCONT would continue it); and when this program ends, even by
SIGKILL, the kernel continues all that it has stopped.

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

_DETACH, _SEIZE, _INTERRUPT = 17, 0x4206, 0x4207  # linux/ptrace.h
_EVENT_STOP: Final = 128
_ALL_THREADS: Final = 0x40000000  # __WALL, linux/wait.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Stop:
    def __init__(self, threads: Sequence[int]) -> None:
        self._threads = [thread for thread in threads if _ptrace(_SEIZE, thread)]
        for thread in self._threads:
            _ptrace(_INTERRUPT, thread)

    def run_due(self, is_over: bool) -> bool:
        """Reap killed threads, which their parents cannot do before the tracer; if ``is_over``,
        continue the stopped ones. Return whether any remain: threads stop with a delay."""
        flags = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _ALL_THREADS
        for thread in self._threads.copy():
            try:
                news = os.waitid(os.P_PID, thread, flags)
            except ChildProcessError:
                self._threads.remove(thread)
                continue
            if news is None:
                continue
            if news.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                self._threads.remove(thread)
                os.waitpid(thread, _ALL_THREADS)
            elif is_over:
                self._threads.remove(thread)
                is_signal = news.si_status >> 8 != _EVENT_STOP  # one that it was about to receive
                _ptrace(_DETACH, thread, news.si_status if is_signal else 0)
        return bool(self._threads)


class Disturber:
    """Stops random threads of a process tree, and releases them."""

    def __init__(self, root: psutil.Process, seed: int) -> None:
        """Pick among the descendants of ``root``, not ``root`` itself."""
        self._root = root
        self._random = random.Random(seed)
        self._held: dict[int, tuple[float, Stop]] = {}  # by process: until when
        self._rested_s: dict[int, float] = {}
        self._next_s = 0.0
        self.counts: Counter[str] = Counter()

    def run_due(self, now_s: float) -> None:
        """Release threads whose time is over; pick others when a pick is due."""
        for pid, (until_s, held) in list(self._held.items()):
            if not held.run_due(until_s <= now_s):
                del self._held[pid]
                self._rested_s[pid] = now_s + _REST_S
        if now_s >= self._next_s and len(self._held) < _HELD_MAX:
            self._next_s = now_s + self._random.expovariate(1 / _GAP_MEAN_S)
            self._pick(now_s)

    def release(self) -> None:
        """Release everything; the kernel releases threads that have not stopped yet."""
        self._next_s, give_up_s = float("inf"), time.monotonic() + HOLD_MAX_S
        while self._held and time.monotonic() < give_up_s:
            self.run_due(time.monotonic() + HOLD_MAX_S)
            time.sleep(_TURN_S)

    def _pick(self, now_s: float) -> None:
        # Always the same number of draws, so that delays do not change later picks.
        where, which, extent, share = (self._random.random() for _ in range(4))
        free = [
            process
            for process in _family(self._root)[1:]
            if process.pid not in self._held and self._rested_s.get(process.pid, 0.0) <= now_s
        ]
        if not free:
            return
        process = free[int(where * len(free))]
        threads = _threads_of([process])
        if extent < 0.5 and threads:
            threads = [threads[int(which * len(threads))]]
        self._held[process.pid] = now_s + share * HOLD_MAX_S, Stop(threads)
        self.counts["one thread" if extent < 0.5 else "all threads"] += 1


def run_suite(arguments: Sequence[str], seed: int) -> int:
    """Run pytest under these disturbances; return its exit status."""
    _log(f"seed {seed}, {_BUSY_LOOPS} busy loops")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY_LOOP, str(os.getpid())])
        for _ in range(_BUSY_LOOPS)
    ]
    suite = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    disturber = Disturber(psutil.Process(suite.pid), seed)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal also interrupts pytest
        signal.signal(number, lambda number, _: suite.send_signal(number))
    try:
        while suite.poll() is None:
            disturber.run_due(time.monotonic())
            time.sleep(_TURN_S)
        if suite.returncode == 0 and not disturber.counts:
            return _UNDISTURBED
        return suite.returncode if suite.returncode >= 0 else 128 - suite.returncode
    finally:
        disturber.release()
        for loop in busy:
            loop.kill()
            loop.wait()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(disturber.counts.items()))
        _log(f"seed {seed}: stopped {counts or 'no thread'}")


def _family(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants, oldest first; nothing if it has ended."""
    try:
        return [root, *sorted(root.children(recursive=True), key=lambda each: each.create_time())]
    except psutil.NoSuchProcess:
        return []


def _threads_of(processes: Sequence[psutil.Process]) -> list[int]:
    threads: list[int] = []
    for process in processes:
        try:
            threads += sorted(map(int, os.listdir(f"/proc/{process.pid}/task")))
        except FileNotFoundError:
            continue  # it has ended
    return threads


def _ptrace(request: int, thread: int, data: int = 0) -> bool:
    """Return False if the thread has ended or is about to."""
    return int(_libc.ptrace(request, thread, None, data)) == 0


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
