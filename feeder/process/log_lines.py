"""Log lines of the daemon's processes: one line an event, on stderr.

Logging never blocks: in the daemon descriptor 2 is a pipe whose writers do not block
(``stderr_relay``). When it is full, lines are dropped and counted, and the count is logged once
there is room. A line of at most PIPE_BUF bytes is one write(2), so lines of several processes do
not mix; longer ones are cut.
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

from feeder.metrics.counters import LogCounters

_STDERR: Final = 2
_CUT: Final = " … (cut)\n".encode()

REPORT_INTERVAL_S: Final = 1.0
"""Between two attempts to report dropped lines."""

counters: Final = LogCounters()
"""This process's."""


class LineStream(io.TextIOBase):
    """Replaces ``sys.stderr``: raises nothing, and blocks only if the descriptor does."""

    def __init__(self, source: str = "", fd: int = _STDERR) -> None:
        """Write to ``fd``; ``source`` is the prefix of the line that reports dropped ones."""
        self._source = source
        self._fd = fd
        # Reentrant: the garbage collector may run a __del__ during a write, and if that fails,
        # Python reports it on this stream in the same thread.
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()  # the first is being written
        self._begun = b""  # a line without its end
        self._unreported = 0

    @property
    def has_dropped(self) -> bool:
        """Whether dropped lines have not been reported yet."""
        return self._unreported > 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, text: str) -> int:
        """Write or drop the lines that ``text`` completes; keep the beginning of the next."""
        self._take(text.encode(errors="backslashreplace"))
        return len(text)

    def report_dropped(self) -> None:
        """Log how many lines were dropped, if any were and there is room again."""
        self._take(b"")

    def _take(self, text: bytes) -> None:
        with self._lock:
            self._waiting.append(text)
            if len(self._waiting) > 1:
                return  # a reentrant call: the loop below, further up the stack, writes it
            try:
                while self._waiting:
                    self._put(self._waiting[0])
                    self._waiting.popleft()
            finally:
                self._waiting.clear()  # an exception of a signal handler must not stop the stream

    def _put(self, text: bytes) -> None:
        whole, newline, self._begun = (self._begun + text).rpartition(b"\n")
        self._report()
        for piece in cut_into_pieces(whole + newline):
            if not (self._report() and self._put_piece(piece)):
                self._unreported += piece.count(b"\n")
                counters.log_lines_dropped += piece.count(b"\n")

    def _report(self) -> bool:
        """Report dropped lines; return whether none are unreported."""
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
    """Yield pieces of whole lines, of at most PIPE_BUF bytes; cut longer lines."""
    piece = b""
    for line in lines.splitlines(keepends=True):
        if len(line) > select.PIPE_BUF:
            # errors="ignore" drops a character that the cut would split.
            start = line[: select.PIPE_BUF - len(_CUT)].decode(errors="ignore").encode()
            line = start + _CUT
        if len(piece) + len(line) > select.PIPE_BUF:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


class _OneLine(logging.Formatter):
    """``feeder: node 0: warning: message``; the journal adds the time."""

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
    """Log to stderr from ``level`` up; ``source`` is the prefix that names this process.

    The returned stream also replaces ``sys.stderr``, as tracebacks and warnings must not block
    either.
    """
    stream = LineStream(source)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine(source))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    sys.stderr = stream
    return stream
