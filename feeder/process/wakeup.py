"""Signals as a pollable descriptor, which becomes readable when one of them arrives.

A Python signal handler runs between any two instructions, where little is safe. So the handlers
only record the signal, and the process's loop acts on it.
"""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

_READ_BYTES: Final = 4096


class SignalWakeup:
    """Records the signals that arrive; create it once in a process, in the main thread."""

    def __init__(self, watched: Iterable[signal.Signals]) -> None:
        """Install handlers for the ``watched`` signals and unblock them."""
        watched = tuple(watched)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._arrived: set[signal.Signals] = set()
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in watched:
            signal.signal(number, self._record)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)

    def fileno(self) -> int:
        """Return the descriptor to poll for input."""
        return self._reader.fileno()

    def take(self) -> frozenset[signal.Signals]:
        """Return the watched signals that arrived since the last call."""
        try:
            while self._reader.recv(_READ_BYTES):
                pass
        except BlockingIOError:
            pass
        # A handler that runs meanwhile adds to one of the two sets.
        arrived, self._arrived = self._arrived, set()
        return frozenset(arrived)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._arrived.add(signal.Signals(number))
