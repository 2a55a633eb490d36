"""Log lines of the daemon's processes: one for an event, on stderr, for people and journals.

Logging never waits: in the daemon descriptor 2 is a pipe whose writers do not block
(``stderr_relay``). Lines that it has no room for are dropped, counted, and reported once there is
room. A line of at most PIPE_BUF bytes is one write(2), so lines of several processes do not mix;
longer ones are cut.
"""

import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from feeder.metrics import LogCounters

_STDERR: Final = 2
_CUT: Final = " … (cut)\n".encode()

REPORT_PAUSE_S: Final = 1.0
"""Between two attempts to report lines that were dropped."""

counters: Final = LogCounters()
"""Of this process."""


class LineStream(io.TextIOBase):
    """Takes the place of ``sys.stderr``: raises nothing, and waits only if the descriptor does."""

    def __init__(self, source: str = "", fd: int = _STDERR) -> None:
        """Write to ``fd``; ``source`` begins the line that reports dropped ones."""
        self._source = source
        self._fd = fd
        # Reentrant: a failing __del__ that the garbage collector runs in the midst of a write is
        # reported by Python on this very stream, in the same thread.
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()  # the first is being written
        self._begun = b""  # a line without its end
        self._unreported = 0

    @property
    def has_dropped(self) -> bool:
        """Whether lines were dropped and no line has reported that yet."""
        return self._unreported > 0

    def writable(self) -> bool:
        """Return True, as a stream for writing does."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, text: str) -> int:
        """Write the lines that are complete now, or drop them."""
        self._take(text.encode(errors="backslashreplace"))
        return len(text)

    def report_dropped(self) -> None:
        """Write how many lines were dropped, if there were any and there is room again."""
        self._take(b"")

    def _take(self, text: bytes) -> None:
        with self._lock:
            self._waiting.append(text)
            if len(self._waiting) > 1:
                return  # this thread is in the loop below, which comes to it
            try:
                while self._waiting:
                    self._put(self._waiting[0])
                    self._waiting.popleft()
            finally:
                self._waiting.clear()  # an exception of a signal's handler must not stop the stream

    def _put(self, text: bytes) -> None:
        whole, newline, self._begun = (self._begun + text).rpartition(b"\n")
        self._report()
        for piece in cut_into_pieces(whole + newline):
            if not (self._report() and self._put_piece(piece)):
                self._unreported += piece.count(b"\n")
                counters.log_lines_dropped += piece.count(b"\n")

    def _report(self) -> bool:
        """Return whether nothing is left to report."""
        if self._unreported:
            s = "" if self._unreported == 1 else "s"
            line = (
                f"feeder: {self._source}warning: {self._unreported:,} log line{s} dropped while "
                "stderr was not read\n"
            )
            if self._put_piece(line.encode()):
                self._unreported = 0
        return not self._unreported

    def _put_piece(self, piece: bytes) -> bool:
        try:
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except BlockingIOError:
            return False
        except OSError:
            pass  # the reader is gone for good
        return True


def cut_into_pieces(lines: bytes) -> Iterator[bytes]:
    """Yield whole lines, as many at a time as a pipe takes in one piece; cut longer lines."""
    piece = b""
    for line in lines.splitlines(keepends=True):
        if len(line) > select.PIPE_BUF:
            # Characters of several bytes are not cut in two.
            start = line[: select.PIPE_BUF - len(_CUT)].decode(errors="ignore").encode()
            line = start + _CUT
        if len(piece) + len(line) > select.PIPE_BUF:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


class _OneLine(logging.Formatter):
    """``feeder: node 0: warning: message``; the journal adds the time, people do not need it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"feeder: {self._source}{level}{record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text


def start_logging(level: str, source: str = "") -> LineStream:
    """Send this process's log lines from ``level`` on to stderr; ``source`` says which process.

    The stream that is returned is ``sys.stderr`` from now on: tracebacks and warnings must not
    block either.
    """
    stream = LineStream(source)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine(source))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    sys.stderr = stream
    return stream
