"""Starts a module of ours as a process that is spoken to over a channel."""

import os
import signal
import socket
import subprocess
from typing import Final

from feeder.channel import open_pair
from feeder.python_process import package_path, python_command, single_thread_environment

_HELD_BACK: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Until the process has said what it does about them: a terminal and a batch system signal every
process, those that have only just begun to start included."""


def start_child(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start ``python -m module END PID``; return the process and our end of the channel.

    END is the descriptor of its end, PID our process, with which it is to die. Raises OSError.
    """
    ours, theirs = open_pair()
    with theirs:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            process = subprocess.Popen(
                python_command(
                    *(module, theirs.fileno(), os.getpid()), options=("-X", "faulthandler")
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **package_path(), **single_thread_environment()},
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, ours
