"""Log lines of the daemon's processes: one line an event on stderr, as text or as JSON.

    text    <4>feeder: node 0: warning: worker 3 is stuck: ended
    json    <4>{"time":"2026-11-24T03:10:16.042Z","level":"warning","process":"node 0","pid":71,
                "message":"worker 3 is stuck: ended"}           (one line)

Every line begins with its priority, as in sd-daemon(3): 3 error, 4 warning, 6 info, 7 debug. The
supervisor's relay (``stderr_relay``) keeps these marks for the journal and removes them elsewhere.

Logging never blocks: in the daemon descriptor 2 is a pipe whose writers do not block. When it is
full, lines are dropped and counted. A line has at most PIPE_BUF bytes, so it is one write(2), and
lines of several processes do not mix; a line of JSON is a whole object.
"""

import io
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Final, Literal, get_args

from feeder.metrics.counters import LogCounters
from feeder.metrics.figures import plural

LogFormat = Literal["text", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)

_PRIORITIES: Final = {ERROR: 3, WARNING: 4, INFO: 6, DEBUG: 7}
_WORDS: Final = {ERROR: "error", WARNING: "warning", INFO: "info", DEBUG: "debug"}

SUPERVISOR: Final = "supervisor"
FIELDS: Final = ("session", "client", "worker", "dataset")
"""Attributes of log records, by ``extra=``, that become fields of the JSON object. The names in
them are bounded by the wire, so that they always fit into a line."""

INTERVAL_S: Final = 60.0
ADMITTED_MAX: Final = 10  # of a kind in an interval: to see a pattern; 14,400 a day at most
KINDS_MAX: Final = 256

KEPT: Final = {"kind": None}
"""As ``extra=`` of a log call: the line is not limited, however often it repeats. Another "kind" is
that of the line, where that is not its text without its arguments."""

_CUT: Final = " … (cut)"
_OWN: Final = re.compile(r"feeder: (?:(error|warning): )?")

counters: Final = LogCounters()  # this process's


def mark_line(line: bytes, form: LogFormat, level: int) -> bytes:
    """Give a line, which has its newline, a mark; in JSON make it an object.

    Its level is ``level``, unless it is Feeder's own from before logging has started: such a line
    begins with "feeder: ", and an error or a warning with the word after it.
    """
    text = line.decode(errors="backslashreplace").rstrip("\n")
    process, own = "other", _OWN.match(text)
    if own is not None:
        process, text = SUPERVISOR, text[own.end() :]
        level = {"error": ERROR, "warning": WARNING}.get(own[1], INFO)
    if form == "text":
        return f"<{_PRIORITIES[level]}>".encode() + line
    return _encode(level, {"process": process}, text).encode()


def _encode(level: int, body: Mapping[str, object], message: str, exception: str = "") -> str:
    """Encode an object as a line; where that is too long, cut the exception, then the message."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")  # RFC 3339
    head = {"time": at.replace("+00:00", "Z"), "level": _WORDS[level], **body}
    end = ""
    while True:
        last = {"exception": exception} if exception else {}
        text = json.dumps(
            {**head, "message": message + end, **last}, ensure_ascii=False, separators=(",", ":")
        )
        # A lone half of a surrogate pair, as in names that are not UTF-8, is no text of JSON.
        line = f"<{_PRIORITIES[level]}>{text}\n".encode(errors="replace")
        if len(line) <= select.PIPE_BUF:
            return line.decode()
        if exception:
            exception = exception[len(exception) // 4 + 1 :].partition("\n")[2]  # the end says most
        else:
            message, end = message[: len(message) * 7 // 8], _CUT


class LogLimiter:
    """Admits some lines of each kind in an interval, which the first of all kinds begins, and
    counts the others. The caller passes the time.

    At most ``kinds_max`` kinds are told apart; others share one limit, so that memory is bounded.
    """

    def __init__(self, admitted_max: int = ADMITTED_MAX, kinds_max: int = KINDS_MAX) -> None:
        self._admitted_max = admitted_max
        self._kinds_max = kinds_max
        self._began_s = 0.0
        self._lines: Counter[Hashable] = Counter()
        self._suppressed: dict[Hashable, logging.LogRecord] = {}  # the last of each kind

    def admit(self, kind: Hashable, now_s: float, record: logging.LogRecord | None = None) -> bool:
        """Whether to log a line. If not, and ``record`` is given, it is counted for ``take_due``,
        without which no new interval begins."""
        is_over = not self._suppressed and now_s - self._began_s >= INTERVAL_S
        if is_over or not self._lines:
            self._lines.clear()
            self._began_s = now_s
        if kind not in self._lines and len(self._lines) >= self._kinds_max:
            kind = None
        self._lines[kind] += 1
        is_admitted = self._lines[kind] <= self._admitted_max
        if record is not None and not is_admitted:
            self._suppressed[kind] = record
        return is_admitted

    def take_due(
        self, now_s: float, *, is_end: bool = False
    ) -> list[tuple[int, logging.LogRecord, float]]:
        """Take the number of suppressed lines of each kind, the last one, and the interval's
        seconds, once that is over or ``is_end``."""
        span_s = min(now_s - self._began_s, INTERVAL_S)
        if not self._suppressed or not (is_end or span_s == INTERVAL_S):
            return []
        due = [
            (self._lines[kind] - self._admitted_max, last, span_s)
            for kind, last in self._suppressed.items()
        ]
        self._lines.clear()
        self._suppressed.clear()
        return due


class LineStream(logging.Handler, io.TextIOBase):
    """Handles log records, of which it limits those that repeat, and replaces ``sys.stderr``.

    Raises nothing, and blocks only if its descriptor does. Its lock is reentrant: the garbage
    collector may run a __del__ during a write, and if that fails, Python reports it on this stream
    in the same thread.
    """

    def __init__(self, process: str = SUPERVISOR, form: LogFormat = "text", fd: int = 2) -> None:
        """``process`` is "supervisor" or such as "node 0". ``fd`` is a pipe, into which lines of up
        to PIPE_BUF bytes go whole or not at all."""
        super().__init__()
        self.lock = self._lock = threading.RLock()
        self._process = process
        self._form = form
        self._fd = fd
        self._begun = ""  # a line without its end
        self._unreported = 0
        self._limiter = LogLimiter()

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        """Write or drop the lines that ``text`` completes, as errors: what is written here past
        logging is a traceback or the error that ends the process."""
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                if self._form == "json":
                    self.report(_OWN.sub("", line, count=1), ERROR)
                else:
                    self._write(f"<{_PRIORITIES[ERROR]}>{line}\n")
        return len(text)

    def report(self, message: str, level: int = INFO, trace: str = "", **fields: object) -> None:
        """Write a message, whatever the log's level is, and however often.

        ``trace`` is an exception's, ``fields`` are more of the object in JSON.
        """
        self._write(self._render(message, level, trace, **fields))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        try:
            now_s = time.monotonic()
            self.report_suppressed()
            message = record.getMessage()  # before it is limited: what is kept must not fail later
            # A text that is only "%s" says nothing of the kind, so the message does.
            kind = getattr(record, "kind", message if record.msg == "%s" else str(record.msg))
            if (
                DEBUG < record.levelno < ERROR
                and kind is not None
                and not self._limiter.admit((record.name, record.levelno, kind), now_s, record)
            ):
                counters.log_lines_limited += 1
            else:
                self._write_record(record, message)
        except (TypeError, ValueError, LookupError):  # of a message and its arguments
            self.handleError(record)

    def report_suppressed(self, *, is_end: bool = False) -> None:
        """Log how many lines were limited, in an interval that is over or until the end, and how
        many were dropped, if there is room again."""
        with self._lock:
            for count, last, span_s in self._limiter.take_due(time.monotonic(), is_end=is_end):
                within = f"{count:,} more like this within {max(1.0, span_s):.0f} s"
                self._write_record(last, f"{within}, the latest: {last.getMessage()}")
            self._write("")

    def close(self) -> None:
        """Log what was suppressed; called when the process ends."""
        self.report_suppressed(is_end=True)
        super().close()

    def _write_record(self, record: logging.LogRecord, message: str) -> None:
        self.report(
            message,
            min(record.levelno, ERROR),
            logging.Formatter().formatException(record.exc_info) if record.exc_info else "",
            **{name: vars(record)[name] for name in FIELDS if name in vars(record)},
        )

    def _render(self, message: str, level: int, trace: str = "", **fields: object) -> str:
        """Render a line; as text one or more, each with its mark."""
        if self._form == "json":
            body = {"process": self._process, "pid": os.getpid(), **fields}
            return _encode(level, body, message, trace)
        source = "" if self._process == SUPERVISOR else f"{self._process}: "
        word = f"{_WORDS[level]}: " if level >= WARNING else ""
        text = f"feeder: {source}{word}{message}" + (f"\n{trace}" if trace else "")
        return "".join(f"<{_PRIORITIES[level]}>{line}\n" for line in text.split("\n"))

    def _write(self, lines: str) -> None:
        """Write or drop whole lines, after the number of those dropped before."""
        with self._lock:
            if self._unreported:
                lost = plural(self._unreported, "log line")
                report = f"{lost} dropped while stderr was not read"
                if self._write_line(self._render(report, WARNING).encode()):
                    self._unreported = 0
            for line in cut_lines(lines.encode(errors="backslashreplace")):
                if self._unreported or not self._write_line(line):
                    self._unreported += 1
                    counters.log_lines_dropped += 1

    def _write_line(self, line: bytes) -> bool:
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the reader is gone for good
        return True


def cut_lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines, of at most PIPE_BUF bytes; longer ones are cut."""
    for line in io.BytesIO(text):
        if len(line) > select.PIPE_BUF:
            # errors="ignore" drops a character that the cut would split.
            end = f"{_CUT}\n".encode()
            line = line[: select.PIPE_BUF - len(end)].decode(errors="ignore").encode() + end
        yield line


def start_logging(level: str, process: str = SUPERVISOR, form: LogFormat = "text") -> LineStream:
    """Log to stderr from ``level`` up, through a stream that also replaces ``sys.stderr``."""
    stream = LineStream(process, form)
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    logging.captureWarnings(True)
    sys.stderr = stream
    return stream
