"""The suite on a machine that never has time: its processes and threads stop and starve at random.

    python -m tests.support.starve [--seed N] [--minutes M] [PYTEST ARGUMENT …]

runs pytest with busy loops beside it, and all the while picks a process that pytest has started, or
a single thread of one. What it picks is stopped for up to HOLD_MAX_S, or runs as SCHED_IDLE for as
long. The exit status is pytest's, or 124 where M minutes were not enough.

It stops with ptrace(2), not SIGSTOP. Both have the same effect on the process, but ptrace stops
single threads as well; a process that a test has stopped stays stopped (our SIGCONT would continue
it); and when this program ends, even by SIGKILL, the kernel continues all that it has stopped.

Invariant: only descendants of the pytest that it started are touched. That one itself only hands
out tests (--numprocesses), and to wait for the end of a child that one traces is a trap of its own.
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
"""The shortest lease is 2 s and clients ping every second: a longer stop rightly ends sessions."""

_REST_S: Final = 1.0
"""A process that was held then runs for this long at least: many short stops are no long one."""

_GAP_MEAN_S: Final = 0.2  # between two picks
_HELD_MAX: Final = 3
_TURN_S: Final = 0.005
_END_GRACE_S: Final = 30.0  # from SIGINT to SIGKILL
_OUT_OF_TIME: Final = 124  # as timeout(1)

_BUSY_LOOPS: Final = 2 * (os.cpu_count() or 1)
_BUSY_LOOP: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"

_DETACH, _SEIZE, _INTERRUPT = 17, 0x4206, 0x4207  # linux/ptrace.h
_EVENT_STOP: Final = 128
_ALL_THREADS: Final = 0x40000000  # __WALL, linux/wait.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Stop:
    """Threads that stand still."""

    def __init__(self, threads: Sequence[int]) -> None:
        """Stop them."""
        self._threads = [thread for thread in threads if _ptrace(_SEIZE, thread)]
        for thread in self._threads:
            _ptrace(_INTERRUPT, thread)

    def run_due(self, is_over: bool) -> bool:
        """Reap threads that were killed, as their parents cannot before; continue all that are
        stopped if the stop ``is_over``. Return whether any are left: not all stop at once."""
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
                is_signal = news.si_status >> 8 != _EVENT_STOP  # which it was about to receive
                _ptrace(_DETACH, thread, news.si_status if is_signal else 0)
        return bool(self._threads)


class Starvation:
    """Threads that run only where nobody else wants to."""

    def __init__(self, process: psutil.Process, threads: Sequence[int]) -> None:
        """Starve some threads of a process."""
        self._process = process
        self._threads = threads
        for thread in threads:
            _set_policy(thread, os.SCHED_IDLE)

    def run_due(self, is_over: bool) -> bool:
        """End it if it ``is_over``; return whether it goes on."""
        if is_over:
            heirs = _threads_of(_family(self._process)[1:])  # a child inherits the policy
            for thread in (*self._threads, *heirs):
                _set_policy(thread, os.SCHED_OTHER)
        return not is_over


class Tormentor:
    """Picks threads of a tree of processes, and lets all go again."""

    def __init__(self, root: psutil.Process, seed: int, *, may_starve: bool) -> None:
        """Its descendants are picked, not ``root`` itself."""
        self._root = root
        self._random = random.Random(seed)
        self._kinds = ["stop", "starve"] if may_starve else ["stop"]
        self._held: dict[int, tuple[float, Stop | Starvation]] = {}  # by process: until when
        self._rested_s: dict[int, float] = {}
        self._next_s = 0.0
        self.counts: Counter[str] = Counter()

    def run_due(self, now_s: float) -> None:
        """Let go of what was held for long enough; pick another where one is due."""
        for pid, (until_s, held) in list(self._held.items()):
            if not held.run_due(until_s <= now_s):
                del self._held[pid]
                self._rested_s[pid] = now_s + _REST_S
        if now_s >= self._next_s and len(self._held) < _HELD_MAX:
            self._next_s = now_s + self._random.expovariate(1 / _GAP_MEAN_S)
            self._pick(now_s)

    def release(self) -> None:
        """Let go of everything; the kernel does where a thread has not even stopped yet."""
        self._next_s, give_up_s = float("inf"), time.monotonic() + HOLD_MAX_S
        while self._held and time.monotonic() < give_up_s:
            self.run_due(time.monotonic() + HOLD_MAX_S)
            time.sleep(_TURN_S)

    def _pick(self, now_s: float) -> None:
        # In every case as many numbers are drawn: what was held up does not change what follows.
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
    """Run pytest under all this; return its exit status."""
    starves = may_starve()
    kinds = "stops and starvation" if starves else "stops only: RLIMIT_NICE allows no more"
    _say(f"seed {seed}, {busy_loops} busy loops, {kinds}")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY_LOOP, str(os.getpid())])
        for _ in range(busy_loops)
    ]
    suite = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    tormentor = Tormentor(psutil.Process(suite.pid), seed, may_starve=starves)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal interrupts pytest as well
        signal.signal(number, lambda number, _: suite.send_signal(number))
    end_s = time.monotonic() + limit_s
    try:
        while suite.poll() is None and time.monotonic() < end_s:
            tormentor.run_due(time.monotonic())
            time.sleep(_TURN_S)
        tormentor.release()
        if suite.poll() is not None:
            return suite.returncode if suite.returncode >= 0 else 128 - suite.returncode
        _say(f"not over after {limit_s / 60:g} minutes: interrupted")
        suite.send_signal(signal.SIGINT)
        try:
            suite.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            for process in _family(tormentor._root):
                process.kill()
        return _OUT_OF_TIME
    finally:
        tormentor.release()
        for loop in busy:
            loop.kill()
            loop.wait()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(tormentor.counts.items()))
        _say(f"seed {seed}: {counts or 'nothing was held'}")


def _family(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants, oldest first; nothing where it has ended."""
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
    """Return False where the thread has ended, or is about to."""
    return int(_libc.ptrace(request, thread, None, data)) == 0


def _set_policy(thread: int, policy: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread, policy, os.sched_param(0))


def may_starve() -> bool:
    """Return whether a thread may leave SCHED_IDLE; exit where none may be stopped."""
    probe = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    try:
        if not _ptrace(_SEIZE, probe):
            sys.exit("starve: ptrace(2) is not allowed here: run this where it is")
        os.sched_setscheduler(probe, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(probe, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False  # for want of RLIMIT_NICE
    finally:
        os.kill(probe, signal.SIGKILL)
        os.waitpid(probe, 0)
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"starve: {text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.starve", allow_abbrev=False)
    parser.add_argument("--seed", type=int, help="of the picks; by default another every time")
    parser.add_argument("--busy-loops", type=int, default=_BUSY_LOOPS, help="beside the suite")
    parser.add_argument("--minutes", type=float, default=60.0, help="for the whole suite (60)")
    options, arguments = parser.parse_known_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    return run_suite(arguments, seed, 60 * options.minutes, options.busy_loops)


if __name__ == "__main__":
    sys.exit(main())
