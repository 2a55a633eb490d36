"""Standard error that blocks no process of the daemon, whatever it is and whoever stops reading it.

    supervisor, node processes, workers ──► a pipe, as descriptor 2 ──► thread ──► stderr as given

A write to a pipe that is full, a terminal under Ctrl-S or a journal that hangs blocks its writer.
O_NONBLOCK would help with some of these, but belongs to the open file, which the daemon shares with
the shell that started it. So descriptor 2 becomes a pipe of the daemon's own, whose end for writing
does not block; it is the buffer, too. Processes that the supervisor starts inherit it, and what C
libraries and faulthandler write there cannot block either. Only the thread here waits for stderr as
it was given.

Invariant: nothing else in the daemon writes to stderr as it was given.
"""

import atexit
import os
import select
import threading
import time
from typing import Final

from feeder.process.log_lines import cut_into_pieces
from feeder.process.stop_signals import stop_signals_held_back

_STDERR: Final = 2
_READ_BYTES: Final = 64 * 1024
"""As much as a pipe holds, so that what was one write is not read in two halves."""

_DRAIN_S: Final = 1.0
_STALLED_S: Final = 0.2
"""A stderr that takes nothing for so long at the end of the daemon is not waited for."""

_LOOK_S: Final = 0.02


class StderrRelay:
    """Relays descriptor 2 from now on, to the end of the process."""

    def __init__(self) -> None:
        """Put the pipe in the place of descriptor 2; where that is closed, do nothing."""
        self._thread: threading.Thread | None = None
        try:
            self._given = os.dup(_STDERR)
        except OSError:
            return
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._thread = threading.Thread(target=self._relay, name="stderr", daemon=True)
        # The kernel may deliver a signal to any thread that does not block it, and the main thread
        # would not notice until later.
        with stop_signals_held_back():
            self._thread.start()  # first: where no thread can be had, descriptor 2 stays as it is
        os.dup2(writer, _STDERR)
        os.close(writer)
        atexit.register(self.close)

    def close(self) -> None:
        """Wait until all is written, unless stderr is not read: then for a moment only."""
        if self._thread is None:
            return
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)  # the relay ends with the last writer
        polls = select.poll()
        polls.register(self._given, select.POLLOUT)
        end_s = time.monotonic() + _DRAIN_S
        moved_s = time.monotonic()
        while self._thread.is_alive() and time.monotonic() < min(end_s, moved_s + _STALLED_S):
            self._thread.join(_LOOK_S)
            if polls.poll(0):
                moved_s = time.monotonic()

    def _relay(self) -> None:
        is_heard = True
        while lines := os.read(self._reader, _READ_BYTES):
            for piece in cut_into_pieces(lines):
                if is_heard:
                    is_heard = self._write(piece)

    def _write(self, piece: bytes) -> bool:
        """Write to stderr as given; return False where nobody will ever read it."""
        while piece:
            try:
                piece = piece[os.write(self._given, piece) :]
            except BlockingIOError:  # whoever gave it to us has made it so
                polls = select.poll()
                polls.register(self._given, select.POLLOUT)
                polls.poll()
            except BrokenPipeError:
                return False
            except OSError:
                return True  # a disk that is full now
        return True
