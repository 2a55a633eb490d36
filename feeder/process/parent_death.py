"""Processes that never outlive their parent, whatever kills it.

Each process of the daemon calls this first thing. It is done in the child itself, not in a
preexec_fn, which could deadlock, and the parent is looked at once more afterwards: it may have died
before the kernel was asked. Only the standard library is imported here.
"""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when process ``parent`` ends.

    Exits at once, with status 0, when it has ended already. The parent's thread that started this
    process must live as long as the parent; in Feeder that is its main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(0)
