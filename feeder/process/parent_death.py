"""Ends a process when its parent ends, whatever kills the parent; reaps orphans.

Each process of the daemon calls ``die_with_parent`` first. It runs in the child, not in a
preexec_fn, which could deadlock. The parent is checked again afterwards, because it may have died
before the prctl call. Imports the standard library only.
"""

import ctypes
import os
import signal
from collections.abc import Collection
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when process ``parent`` ends.

    Exits at once, with status 0, if it has ended already. The kernel watches the thread that
    started this process, so it must live as long as the parent; in Feeder it is the main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants when their own dies, as PID 1 of a container is anyway.

    They stay as zombies until the caller reaps them with ``reap_orphans``.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def reap_orphans(children: Collection[int]) -> None:
    """Reap the adopted processes that have ended, but none of ``children``.

    These are the caller's own, and the exit status of each is for the code that started it. The
    caller reaps them at once: while one that has ended is not reaped, it hides orphans behind it.
    """
    while True:
        try:
            # WNOWAIT: look at it first, as its status can be taken only once.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in children:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def _prctl(option: int, value: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")
