"""The form of log lines: text for people, or a JSON object a line for programs.

    text    <4>feeder: node 0: warning: worker 3 is stuck: ended
    json    <4>{"time":"2026-11-24T03:10:16.042Z","level":"warning","process":"node 0","pid":71,
                "message":"worker 3 is stuck: ended"}           (one line)

Every line begins with its priority, as in sd-daemon(3): 3 error, 4 warning, 6 info, 7 debug. The
supervisor's relay (``stderr_relay``) keeps these marks for the journal and removes them elsewhere.
So only one place has to know where the log ends up. Lines without a mark come from C libraries and
crashes; ``Unmarked`` gives them a priority, and in JSON an object.

Invariant: a line of JSON is a whole object of at most PIPE_BUF bytes, whatever the message; lines
of text are cut where they are written.
"""

import json
import logging
import os
import re
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["text", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")

ERROR: Final = 3
WARNING: Final = 4
INFO: Final = 6
DEBUG: Final = 7
_WORDS: Final = {ERROR: "error", WARNING: "warning", INFO: "info", DEBUG: "debug"}

SUPERVISOR: Final = "supervisor"
FIELDS: Final = ("session", "client", "worker", "dataset")
"""Attributes of log records, by ``extra=``, that become fields of the JSON object."""

_ALWAYS: Final = ("time", "level", "process", "pid")
_MARK: Final = re.compile(rb"<([0-7])>")
_MARK_BYTES: Final = 3
_CUT: Final = " … (cut)"
_OWN: Final = re.compile(r"feeder: (?:(error|warning): )?")


def priority_of(level: int) -> int:
    """The priority of a level of the logging module."""
    if level >= logging.ERROR:
        return ERROR
    if level >= logging.WARNING:
        return WARNING
    return INFO if level >= logging.INFO else DEBUG


def has_mark(line: bytes) -> bool:
    return _MARK.match(line) is not None


def without_mark(line: bytes) -> bytes:
    """Return a line without its priority, if it has one."""
    return line[_MARK_BYTES:] if has_mark(line) else line


@dataclass(frozen=True, slots=True)
class LineForm:
    """How a process writes its lines; ``process`` is "supervisor" or such as "node 0"."""

    process: str = SUPERVISOR
    format: LogFormat = "text"

    def render(
        self,
        priority: int,
        message: str,
        *,
        exception: str = "",
        fields: Mapping[str, object] | None = None,
        at_s: float | None = None,
    ) -> str:
        """Return a message as one line; as text one or more, each with its mark and newline.

        ``exception`` is a traceback, ``fields`` are more of the object in JSON, and ``at_s`` is the
        time since the epoch, by default now.
        """
        if self.format == "json":
            body: dict[str, object] = {
                "time": format_time(time.time() if at_s is None else at_s),
                "level": _WORDS[priority],
                "process": self.process,
                "pid": os.getpid(),
                **(fields or {}),
            }
            return _encode(priority, body, message, exception)
        source = "" if self.process == SUPERVISOR else f"{self.process}: "
        level = "" if priority >= INFO else f"{_WORDS[priority]}: "
        text = f"feeder: {source}{level}{message}" + (f"\n{exception}" if exception else "")
        return "".join(f"<{priority}>{line}\n" for line in text.split("\n"))

    def render_raw(self, line: str) -> str:
        """Return a line that was written to sys.stderr past logging: a traceback's, or an error."""
        if self.format == "json":
            return self.render(ERROR, _OWN.sub("", line, count=1))
        return f"<{ERROR}>{line}\n"


@dataclass(frozen=True, slots=True)
class Unmarked:
    """What becomes of lines without a mark, by form; ``priority`` is that of most of them.

    Before logging has started, Feeder's own lines have none either: those begin with "feeder: ",
    and errors and warnings with the word after it.
    """

    format: LogFormat = "text"
    priority: int = INFO

    def mark(self, line: bytes) -> bytes:
        """Return a line, which has its newline, with a mark; in JSON as an object."""
        text = line.decode(errors="backslashreplace").rstrip("\n")
        own = _OWN.match(text)
        priority = self.priority
        if own is not None:
            priority = {"error": ERROR, "warning": WARNING}.get(own[1], INFO)
        if self.format == "text":
            return f"<{priority}>".encode() + line
        body: dict[str, object] = {
            "time": format_time(time.time()),
            "level": _WORDS[priority],
            "process": "other" if own is None else SUPERVISOR,
        }
        message = text if own is None else text[own.end() :]
        return _encode(priority, body, message, "").encode()


def format_time(at_s: float) -> str:
    """Return a time since the epoch as in RFC 3339, in UTC, to the millisecond."""
    text = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _encode(priority: int, body: Mapping[str, object], message: str, exception: str) -> str:
    """Return the object as a line; where it is too long, cut the exception, the message, the rest.

    Of an exception the end is kept, which names the error.
    """
    while True:
        last = {"exception": exception} if exception else {}
        text = json.dumps(
            {**body, "message": message, **last}, ensure_ascii=False, separators=(",", ":")
        )
        # A lone half of a surrogate pair, as in names that are not UTF-8, is no text of JSON.
        line = f"<{priority}>{text}\n".encode(errors="replace")
        over = len(line) - select.PIPE_BUF
        if over <= 0:
            return line.decode()
        if exception:
            kept = _fitting(exception, over)
            exception = exception[len(exception) - kept :].partition("\n")[2]
        elif message != _CUT:
            message = message.removesuffix(_CUT)
            message = message[: _fitting(message, over + len(_CUT.encode()))] + _CUT
        else:
            body = {name: body[name] for name in _ALWAYS if name in body}


def _fitting(text: str, over: int) -> int:
    """Estimate how many characters of ``text`` to keep, fewer than all, to save ``over`` bytes."""
    size = len(json.dumps(text, ensure_ascii=False).encode(errors="replace"))
    return max(0, len(text) * (size - over) // size)
