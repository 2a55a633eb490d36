"""Starts a module of Feeder as a child process with a channel to it; describes how it ended."""

import os
import socket
import subprocess

from feeder.process.channel import open_pair
from feeder.process.python_process import (
    child_environment,
    python_command,
    single_thread_environment,
)
from feeder.process.stop_signals import stop_signals_blocked


def start_child(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start ``python -m module END PID``; return the process and the parent's end of the channel.

    END is the child's descriptor, PID the parent, for ``die_with_parent``. Raises OSError.
    """
    ours, theirs = open_pair()
    with theirs, stop_signals_blocked():
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


def describe_ending(status: int | None) -> str:
    """Return how a child ended; None: it was killed but does not end, as a read does not return."""
    if status is None:
        return "was killed and does not end, because it waits for a read"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
