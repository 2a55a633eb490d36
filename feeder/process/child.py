"""Starts a module of ours as a process that is spoken to over a channel."""

import os
import socket
import subprocess

from feeder.process.channel import open_pair
from feeder.process.python_process import (
    child_environment,
    python_command,
    single_thread_environment,
)
from feeder.process.stop_signals import stop_signals_held_back


def start_child(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start ``python -m module END PID``; return the process and our end of the channel.

    END is the descriptor of its end, PID our process, with which it is to die. Raises OSError.
    """
    ours, theirs = open_pair()
    with theirs, stop_signals_held_back():
        try:
            process = subprocess.Popen(
                python_command(
                    *(module, theirs.fileno(), os.getpid()), options=("-X", "faulthandler")
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(single_thread_environment()),
            )
        except OSError:
            ours.close()
            raise
    return process, ours
