"""Signals as something to poll: a descriptor becomes readable when one of them has arrived.

A handler in Python runs between any two instructions, where little is safe; so handlers here only
remember, and the process's loop acts when it comes round.
"""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

_READ_BYTES: Final = 4096


class SignalWakeup:
    """Remembers the signals that arrived; make it in the main thread, once in a process."""

    def __init__(self, watched: Iterable[signal.Signals]) -> None:
        """Take over the handlers of the ``watched`` signals, and hear those that were held back."""
        watched = tuple(watched)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._arrived: set[signal.Signals] = set()
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in watched:
            signal.signal(number, self._remember)
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
        # A handler that runs meanwhile adds to the one set or to the other.
        arrived, self._arrived = self._arrived, set()
        return frozenset(arrived)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._arrived.add(signal.Signals(number))
