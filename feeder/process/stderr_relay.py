"""Keeps standard error from blocking any process of the daemon.

    supervisor, node processes, workers ──► a pipe, as descriptor 2 ──► thread ──► original stderr

A full pipe, a terminal under Ctrl-S or a hanging journal blocks its writers. O_NONBLOCK would help
with some of these, but it belongs to the open file, which the daemon shares with the shell that
started it. So descriptor 2 becomes a pipe of the daemon's own with a non-blocking write end; the
pipe is also the buffer. Child processes inherit it, so that C libraries and faulthandler, which
write to it directly, cannot block either. Only the thread here waits for the original stderr.

Invariant: nothing else in the daemon writes to the original stderr.
"""

import atexit
import os
import select
import threading
import time
from typing import Final

from feeder.process.log_lines import cut_into_pieces
from feeder.process.stop_signals import stop_signals_blocked

_STDERR: Final = 2
_READ_BYTES: Final = 64 * 1024
"""A pipe's capacity, so that no write is split between two reads."""

_DRAIN_S: Final = 1.0
"""Longest wait at exit for the pipe to drain."""
_STALL_S: Final = 0.2
"""The wait at exit ends early if stderr is not writable for this long."""

_POLL_S: Final = 0.02


class StderrRelay:
    """Relays descriptor 2 until the process exits."""

    def __init__(self) -> None:
        """Replace descriptor 2 by the pipe; do nothing if it is closed."""
        self._thread: threading.Thread | None = None
        try:
            self._original = os.dup(_STDERR)
        except OSError:
            return
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._thread = threading.Thread(target=self._relay, name="stderr", daemon=True)
        # The thread inherits the mask. The kernel may deliver a signal to any thread that does not
        # block it, and the main thread would not notice until later.
        with stop_signals_blocked():
            self._thread.start()  # first, so that descriptor 2 is unchanged if this raises
        os.dup2(writer, _STDERR)
        os.close(writer)
        atexit.register(self.close)

    def close(self) -> None:
        """Wait until the pipe is drained, but only briefly if stderr is not read."""
        if self._thread is None:
            return
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)  # the relay ends with the last writer
        polls = select.poll()
        polls.register(self._original, select.POLLOUT)
        end_s = time.monotonic() + _DRAIN_S
        last_ready_s = time.monotonic()
        while self._thread.is_alive() and time.monotonic() < min(end_s, last_ready_s + _STALL_S):
            self._thread.join(_POLL_S)
            if polls.poll(0):
                last_ready_s = time.monotonic()

    def _relay(self) -> None:
        is_read = True
        while lines := os.read(self._reader, _READ_BYTES):
            for piece in cut_into_pieces(lines):
                if is_read:
                    is_read = self._write(piece)

    def _write(self, piece: bytes) -> bool:
        """Write to the original stderr; return False if its reader has gone."""
        while piece:
            try:
                piece = piece[os.write(self._original, piece) :]
            except BlockingIOError:  # another process made it non-blocking
                polls = select.poll()
                polls.register(self._original, select.POLLOUT)
                polls.poll()
            except BrokenPipeError:
                return False
            except OSError:
                return True  # may pass, like a full disk
        return True
