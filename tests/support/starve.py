"""Runs the test suite while its processes and threads are stopped and starved at random.

    python -m tests.support.starve [--seed N] [--minutes M] [PYTEST ARGUMENT …]

runs pytest beside busy loops, and repeatedly picks a process that pytest has started, or a single
thread of one. It is stopped, or runs as SCHED_IDLE, for up to HOLD_MAX_S. The exit status is
pytest's, or 124 after a timeout of M minutes, or 3 if no thread was ever held.

Threads are stopped with ptrace(2), not SIGSTOP: ptrace can stop a single thread; a process that a
test has stopped stays stopped (our SIGCONT would continue it); and when this program ends, even by
SIGKILL, the kernel continues all that it has stopped.

Invariant: only descendants of the pytest that it started are touched, not that pytest itself. It
only distributes tests (--numprocesses), and waiting for a child that is also traced is error-prone.
"""

import argparse
import contextlib
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
_END_GRACE_S: Final = 30.0  # from SIGINT to SIGKILL
_OUT_OF_TIME: Final = 124  # as timeout(1)
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


class Starvation:
    """Threads that run only on an otherwise idle processor."""

    def __init__(self, process: psutil.Process, threads: Sequence[int]) -> None:
        """Set SCHED_IDLE for threads of a process."""
        self._process = process
        self._threads = threads
        for thread in threads:
            _set_policy(thread, os.SCHED_IDLE)

    def run_due(self, is_over: bool) -> bool:
        """Restore the policy if ``is_over``; return whether the starvation continues."""
        if is_over:
            inherited = _threads_of(_family(self._process)[1:])  # a child inherits the policy
            for thread in (*self._threads, *inherited):
                _set_policy(thread, os.SCHED_OTHER)
        return not is_over


class Disturber:
    """Stops and starves random threads of a process tree, and releases them."""

    def __init__(self, root: psutil.Process, seed: int, *, may_starve: bool) -> None:
        """Pick among the descendants of ``root``, not ``root`` itself."""
        self._root = root
        self._random = random.Random(seed)
        self._kinds = ["stop", "starve"] if may_starve else ["stop"]
        self._held: dict[int, tuple[float, Stop | Starvation]] = {}  # by process: until when
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
        where, which, kind, extent, share = (self._random.random() for _ in range(5))
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
        name = self._kinds[int(kind * len(self._kinds))]
        self._held[process.pid] = (
            now_s + share * HOLD_MAX_S,
            Stop(threads) if name == "stop" else Starvation(process, threads),
        )
        self.counts[f"{name} {'one thread' if extent < 0.5 else 'all threads'}"] += 1


def run_suite(arguments: Sequence[str], seed: int, limit_s: float, busy_loops: int) -> int:
    """Run pytest under these disturbances; return its exit status."""
    starves = may_starve()
    kinds = "stops and starvation" if starves else "stops only, as RLIMIT_NICE is too low"
    _log(f"seed {seed}, {busy_loops} busy loops, {kinds}")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY_LOOP, str(os.getpid())])
        for _ in range(busy_loops)
    ]
    suite = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    disturber = Disturber(psutil.Process(suite.pid), seed, may_starve=starves)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal also interrupts pytest
        signal.signal(number, lambda number, _: suite.send_signal(number))
    end_s = time.monotonic() + limit_s
    try:
        while suite.poll() is None and time.monotonic() < end_s:
            disturber.run_due(time.monotonic())
            time.sleep(_TURN_S)
        disturber.release()
        if suite.poll() is not None:
            if suite.returncode == 0 and not disturber.counts:
                return _UNDISTURBED
            return suite.returncode if suite.returncode >= 0 else 128 - suite.returncode
        _log(f"timeout after {limit_s / 60:g} minutes: interrupting pytest")
        suite.send_signal(signal.SIGINT)
        try:
            suite.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            for process in _family(disturber._root):
                process.kill()
        return _OUT_OF_TIME
    finally:
        disturber.release()
        for loop in busy:
            loop.kill()
            loop.wait()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(disturber.counts.items()))
        _log(f"seed {seed}: {counts or 'no thread was held'}")


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


def _set_policy(thread: int, policy: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread, policy, os.sched_param(0))


def may_starve() -> bool:
    """Return whether a thread may leave SCHED_IDLE; exit if ptrace is not permitted."""
    probe = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    try:
        if not _ptrace(_SEIZE, probe):
            sys.exit("starve: ptrace(2) is not permitted here")
        os.sched_setscheduler(probe, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(probe, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False  # RLIMIT_NICE is too low
    finally:
        os.kill(probe, signal.SIGKILL)
        os.waitpid(probe, 0)
    return True


def _log(text: str) -> None:
    sys.stdout.write(f"starve: {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.starve", allow_abbrev=False)
    parser.add_argument("--seed", type=int, help="of the random picks; random by default")
    parser.add_argument(
        "--busy-loops",
        type=int,
        default=_BUSY_LOOPS,
        help="number of processes that only use CPU time",
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="timeout of the whole suite (60)"
    )
    options, arguments = parser.parse_known_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    return run_suite(arguments, seed, 60 * options.minutes, options.busy_loops)


if __name__ == "__main__":
    sys.exit(main())
