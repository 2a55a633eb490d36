"""Starts Feeder's own Python processes, with or without a socket to them; ends and reaps them.

A child imports the same package as its parent, and nothing from the working directory, where a
folder ``feeder`` or a file ``random.py`` would shadow the right one. It ends when its parent ends,
whatever kills the parent: its first act is ``die_with_parent``. Imports the standard library only.
"""

import contextlib
import ctypes
import os
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from feeder.process.stop_signals import stop_signals_blocked

SINGLE_THREADS: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
"""The variables that limit numeric libraries to one thread, if set before imports."""
CHILD_VARIABLES: Final = {**SINGLE_THREADS, "PYTHONFAULTHANDLER": "1"}

# Requested; the kernel may grant less. Hundreds of small packets fit, so that a burst of sessions
# does not look like a stuck worker.
_BUFFER_BYTES: Final = 1 << 20


def python_command(module: str, *arguments: str | int) -> list[str]:
    """The command that runs ``module``."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a Feeder child process, with the variables ``more``."""
    environment = {**os.environ, **(more or {})}
    root = str(Path(__file__).resolve().parents[2])
    # Where Feeder is installed no path is needed, and site-packages must not come before the
    # standard library: it may hold an old backport of one of its modules.
    if root not in map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()]):
        entries = [root, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
    return environment


def start_python(
    module: str, *arguments: str | int, more: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` with the variables ``more`` and Popen's ``settings``; OSError.
    Its standard input is empty unless these say otherwise."""
    settings = {"stdin": subprocess.DEVNULL, "env": child_environment(more), **settings}
    return subprocess.Popen(python_command(module, *arguments), **settings)


def start_child(
    module: str, *arguments: str | int, **settings: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start ``python -m module END PID …``; return the process and the parent's end of a pair.

    END is the descriptor of the child's end, PID the parent, for ``die_with_parent``. The numeric
    libraries of the child use one thread; ``more`` replaces CHILD_VARIABLES. Raises OSError.
    """
    ours, theirs = open_pair()
    settings = {"more": CHILD_VARIABLES, "pass_fds": [theirs.fileno()], **settings}
    with theirs, stop_signals_blocked():
        try:
            process = start_python(module, theirs.fileno(), os.getpid(), *arguments, **settings)
        except OSError:
            ours.close()
            raise
    return process, ours


def open_pair() -> tuple[socket.socket, socket.socket]:
    """Connect two ends, which child processes do not inherit unless passed on."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends


def wait_for_exit(process: subprocess.Popen[bytes], wait_s: float) -> int | None:
    """Wait for the exit status of a process, None if it does not end in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    return process.returncode


def describe_ending(status: int | None) -> str:
    """Describe how a child ended; None: it was killed and does not end."""
    if status is None:
        return "was killed and does not end, because it waits for a read"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when process ``parent`` ends; exit if it has.

    The kernel watches the thread that started this process: in Feeder the parent's main thread.
    """
    # In the child, because a preexec_fn could deadlock.
    _prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG, as in linux/prctl.h
    if os.getppid() != parent:  # it died before the call
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants when their own dies; ``reap_orphans`` then reaps them."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def reap_orphans(children: Collection[int]) -> None:
    """Reap the adopted processes that have ended, but none of ``children``.

    The code that started one of these reaps it; until then it hides the orphans behind it.
    """
    # WNOWAIT: look at it first, as its status can be taken only once.
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):  # there is no child
        while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid not in children:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
