"""Starts a module of ours as a process that is spoken to over a channel."""

import os
import socket
import subprocess
import sys

from feeder.channel import open_pair
from feeder.runtime import single_thread_environment


def start_child(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start ``python -m module END PID``; return the process and our end of the channel.

    END is the descriptor of its end, PID our process, with which it is to die. Raises OSError.
    """
    ours, theirs = open_pair()
    with theirs:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-X", "faulthandler", "-m", module),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **single_thread_environment()},
            )
        except OSError:
            ours.close()
            raise
    return process, ours
