"""Ends a process when its parent ends, whatever kills the parent.

Each process of the daemon calls this first. It runs in the child, not in a preexec_fn, which could
deadlock. The parent is checked again afterwards, because it may have died before the prctl call.
Imports the standard library only.
"""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when process ``parent`` ends.

    Exits at once, with status 0, if it has ended already. The kernel watches the thread that
    started this process, so it must live as long as the parent; in Feeder it is the main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(0)
