"""Log lines of the daemon's processes: one line an event, on stderr.

Logging never blocks: in the daemon descriptor 2 is a pipe whose writers do not block
(``stderr_relay``). When it is full, lines are dropped and counted, and the count is logged once
there is room. A line of at most PIPE_BUF bytes is one write(2), so lines of several processes do
not mix; longer ones are cut. Lines that repeat are limited, by their text or their kind
(``of_kind``), except for errors, those with KEPT, and those for debugging, where each one may
matter:

    0 s   a chunk cannot be filled: …                                   10 times
    …     counted, not logged
    60 s  37 more like this within 60 s, the latest: a chunk cannot be filled: …
"""

import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from feeder.metrics.counters import LogCounters
from feeder.process.log_form import FIELDS, INFO, WARNING, LineForm, priority_of

INTERVAL_S: Final = 60.0
ADMITTED_MAX: Final = 10
"""Of a kind in an interval: enough to see a pattern, 14,400 lines a day at most."""
KINDS_MAX: Final = 256

REPORT_INTERVAL_S: Final = 1.0
"""Between two attempts to report dropped lines."""

KEPT: Final = {"is_kept": True}
"""As ``extra=`` of a log call: the line is not limited, however often it repeats."""

_STDERR: Final = 2
_CUT: Final = " … (cut)\n".encode()
_TEXT_ALONE: Final = "%s"

Suppressed: TypeAlias = tuple[int, logging.LogRecord, float]
"""How many lines of a kind were not logged, the last of them, and the seconds since the first."""

counters: Final = LogCounters()
"""This process's."""


def of_kind(kind: str) -> dict[str, str]:
    """Return the ``extra=`` of a log call whose line is limited with others of this kind only.

    Else the kind of a line is its text without its arguments.
    """
    return {"kind": kind}


@dataclass(slots=True)
class _Window:
    """An interval that began with a kind's first line."""

    start_s: float
    admitted: int = 0
    suppressed: int = 0
    last: logging.LogRecord | None = None


class LogLimiter:
    """Admits some lines of each kind a minute, and counts the others. The caller passes the time.

    At most ``kinds_max`` kinds are told apart; others share one limit, so that memory is bounded.
    """

    def __init__(self, admitted_max: int = ADMITTED_MAX, kinds_max: int = KINDS_MAX) -> None:
        self._admitted_max = admitted_max
        self._kinds_max = kinds_max
        self._windows: dict[Hashable, _Window] = {}
        self._due: list[Suppressed] = []
        self.is_suppressing = False
        """Whether ``take_due`` will have something to return."""

    def admit(self, kind: Hashable, now_s: float, record: logging.LogRecord | None = None) -> bool:
        """Whether to log a line. If not, it is counted, for ``take_due`` if ``record`` is given."""
        self._end_windows(now_s)
        if kind not in self._windows and len(self._windows) >= self._kinds_max:
            kind = None
        window = self._windows.setdefault(kind, _Window(now_s))
        if window.admitted < self._admitted_max:
            window.admitted += 1
            return True
        if record is not None:
            window.suppressed += 1
            window.last = record
            self.is_suppressing = True
        return False

    def take_due(self, now_s: float, *, is_end: bool = False) -> list[Suppressed]:
        """Return the counts of the intervals that are over, each once; of all at the end."""
        self._end_windows(now_s, is_end=is_end)
        due, self._due = self._due, []
        self.is_suppressing = any(window.suppressed for window in self._windows.values())
        return due

    def _end_windows(self, now_s: float, *, is_end: bool = False) -> None:
        for kind, window in list(self._windows.items()):
            if is_end or now_s >= window.start_s + INTERVAL_S:
                del self._windows[kind]
                if window.last is not None:
                    span_s = min(now_s - window.start_s, INTERVAL_S)
                    self._due.append((window.suppressed, window.last, span_s))


class LineStream(io.TextIOBase):
    """Replaces ``sys.stderr``: raises nothing, and blocks only if the descriptor does."""

    def __init__(self, form: LineForm | None = None, fd: int = _STDERR) -> None:
        """Write lines of ``form`` to ``fd``."""
        self.form = LineForm() if form is None else form
        self._fd = fd
        # Reentrant: the garbage collector may run a __del__ during a write, and if that fails,
        # Python reports it on this stream in the same thread.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[str, bool]] = deque()  # the first is being written
        self._begun = ""  # a line without its end
        self._unreported = 0
        self.handler = LineHandler(self)

    @property
    def has_dropped(self) -> bool:
        """Whether ``report_dropped`` is to be called again soon."""
        return self._unreported > 0 or self.handler.limiter.is_suppressing

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        """Write or drop the lines that ``text`` completes; keep the beginning of the next.

        They are errors, for what is written here past logging is a traceback or the error that
        ends the process.
        """
        self._take(text, is_rendered=False)
        return len(text)

    def report(self, message: str, priority: int = INFO) -> None:
        """Write a message, whatever the log's level is, and however often."""
        self.write_rendered(self.form.render(priority, message))

    def write_rendered(self, lines: str) -> None:
        """Write or drop whole lines that have their form."""
        self._take(lines, is_rendered=True)

    def report_dropped(self) -> None:
        """Log how many lines were dropped, if there is room again, and how many were limited."""
        if self.handler.limiter.is_suppressing:
            self.handler.report_limited()
        self._take("", is_rendered=True)

    def _take(self, text: str, *, is_rendered: bool) -> None:
        with self._lock:
            self._waiting.append((text, is_rendered))
            if len(self._waiting) > 1:
                return  # a reentrant call: the loop below, further up the stack, writes it
            try:
                while self._waiting:
                    self._put(*self._waiting[0])
                    self._waiting.popleft()
            finally:
                self._waiting.clear()  # an exception of a signal handler must not stop the stream

    def _put(self, text: str, is_rendered: bool) -> None:
        if not is_rendered:
            whole, newline, self._begun = (self._begun + text).rpartition("\n")
            lines = whole.split("\n") if newline else []
            text = "".join(map(self.form.render_raw, lines))
        self._report()
        for piece in cut_into_pieces(text.encode(errors="backslashreplace")):
            if not (self._report() and self._put_piece(piece)):
                self._unreported += piece.count(b"\n")
                counters.log_lines_dropped += piece.count(b"\n")

    def _report(self) -> bool:
        """Report dropped lines; return whether none are unreported."""
        if self._unreported:
            s = "" if self._unreported == 1 else "s"
            line = f"{self._unreported:,} log line{s} dropped while stderr was not read"
            if self._put_piece(self.form.render(WARNING, line).encode()):
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


class LineHandler(logging.Handler):
    """Writes records to a stream, and limits those that repeat."""

    def __init__(self, stream: LineStream) -> None:
        super().__init__()
        self.limiter = LogLimiter()
        self._stream = stream
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        try:
            now_s = time.monotonic()
            self._write_counts(self.limiter.take_due(now_s))
            message = record.getMessage()  # before it is limited: what is kept must not fail later
            if logging.DEBUG < record.levelno < logging.ERROR and not hasattr(record, "is_kept"):
                kind = (record.name, record.levelno, _kind_of(record, message))
                if not self.limiter.admit(kind, now_s, record):
                    counters.log_lines_limited += 1
                    return
            self._write(record, message)
        except (TypeError, ValueError, LookupError):  # of a message and its arguments
            self.handleError(record)

    def report_limited(self, *, is_end: bool = False) -> None:
        """Log how many lines were suppressed in intervals that are over, or until the end."""
        self.acquire()
        try:
            self._write_counts(self.limiter.take_due(time.monotonic(), is_end=is_end))
        finally:
            self.release()

    def close(self) -> None:
        """Log how many lines were suppressed; called when the process ends."""
        self.report_limited(is_end=True)
        super().close()

    def _write_counts(self, counts: Iterable[Suppressed]) -> None:
        for count, last, span_s in counts:
            within = f"{count:,} more like this within {max(1.0, span_s):.0f} s"
            self._write(last, f"{within}, the latest: {last.getMessage()}")

    def _write(self, record: logging.LogRecord, message: str) -> None:
        exception = ""
        if record.exc_info:
            exception = self._formatter.formatException(record.exc_info)
        self._stream.write_rendered(
            self._stream.form.render(
                priority_of(record.levelno),
                message,
                exception=exception,
                fields={name: vars(record)[name] for name in FIELDS if name in vars(record)},
                at_s=record.created,
            )
        )


def _kind_of(record: logging.LogRecord, message: str) -> str:
    """What lines have in common that are limited together."""
    given = vars(record).get("kind")
    if given is not None:
        return str(given)
    text = str(record.msg)
    return message if text == _TEXT_ALONE else text


def start_logging(level: str, form: LineForm | None = None) -> LineStream:
    """Log to stderr from ``level`` up, in lines of ``form``.

    The returned stream also replaces ``sys.stderr``, as tracebacks and warnings must not block
    either.
    """
    stream = LineStream(form)
    logging.basicConfig(level=level.upper(), handlers=[stream.handler], force=True)
    logging.captureWarnings(True)
    sys.stderr = stream
    return stream
