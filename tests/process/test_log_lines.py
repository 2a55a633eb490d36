"""Log lines: marks, text, JSON objects, limits, and what the relay makes of lines without marks."""

import json
import logging
import os
import re
import select
from collections.abc import Iterator
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.process.log_lines import (
    ADMITTED_MAX,
    KEPT,
    LineStream,
    LogFormat,
    LogLimiter,
    counters,
    cut_lines,
    mark_line,
)
from feeder.process.stderr_relay import StderrRelay, is_journal
from tests.support.daemon import DEADLINE_S

LEVELS = st.sampled_from([ERROR, WARNING, INFO, DEBUG])


def render(process: str, form: LogFormat, *message: Any, **fields: object) -> str:
    """What a process reports of a message, level and exception."""
    reader, writer = os.pipe()
    try:
        LineStream(process, form, writer).report(*message, **fields)
        return os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("process", "priority", "line"),
    [
        ("supervisor", ERROR, "<3>feeder: error: m\n"),
        ("supervisor", INFO, "<6>feeder: m\n"),
        ("node 0", WARNING, "<4>feeder: node 0: warning: m\n"),
    ],
)
def test_a_line_of_text_begins_with_its_priority(process: str, priority: int, line: str) -> None:
    assert render(process, "text", "m", priority) == line


def test_every_line_of_a_traceback_has_the_mark() -> None:
    text = render("supervisor", "text", "it failed", ERROR, "Traceback\n  x\nValueError: y")
    assert text == "<3>feeder: error: it failed\n<3>Traceback\n<3>  x\n<3>ValueError: y\n"


def test_an_object_has_time_level_process_pid_message_and_fields() -> None:
    line = render("node 1", "json", "expired", WARNING, "T\nE", session="1a2b3c4d")
    assert line.startswith("<4>{")
    assert line.count("\n") == 1
    body = json.loads(line[3:])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body.pop("time"))
    assert body == {
        "level": "warning",
        "process": "node 1",
        "pid": os.getpid(),
        "session": "1a2b3c4d",
        "message": "expired",
        "exception": "T\nE",
    }


@given(LEVELS, st.text(), st.text(), st.text(max_size=50))
def test_an_object_is_one_line_that_can_be_read(
    priority: int, message: str, exception: str, client: str
) -> None:
    line = render("p", "json", message, priority, exception, client=client)
    assert line.count("\n") == 1
    body = json.loads(line.encode()[3:])
    if message.isprintable():
        assert body["message"] == message


@pytest.mark.parametrize(("size", "character"), [(3900, "\x01"), (4096, "é"), (20_000, "\\")])
def test_an_object_over_pipe_buf_is_cut_and_stays_whole(size: int, character: str) -> None:
    exception = "first\n" + "frame\n" * size + "ValueError: y"
    line = render("p", "json", character * size, ERROR, exception, client="c" * 100)
    assert len(line.encode()) <= select.PIPE_BUF
    body = json.loads(line[3:])
    assert set(body["message"].removesuffix(" … (cut)")) == {character}
    short = render("p", "json", "m", ERROR, exception)
    assert json.loads(short[3:])["exception"].endswith("\nValueError: y"), "the end names the error"


@pytest.mark.parametrize(
    ("line", "text", "level", "process", "message"),
    [
        (b"Aborted\n", b"<4>Aborted\n", "warning", "other", "Aborted"),
        (b"feeder: error: no\n", b"<3>feeder: error: no\n", "error", "supervisor", "no"),
        (b"feeder: packed\n", b"<6>feeder: packed\n", "info", "supervisor", "packed"),
        (b"\xff\n", b"<4>\xff\n", "warning", "other", "\\xff"),
    ],
)
def test_lines_without_a_mark_get_one(
    line: bytes, text: bytes, level: str, process: str, message: str
) -> None:
    assert mark_line(line, "text", WARNING) == text
    marked = mark_line(line, "json", WARNING)
    body = json.loads(marked[3:])
    assert marked[:3] == text[:3]
    assert (body["level"], body["process"], body["message"]) == (level, process, message)


# --- the relay --------------------------------------------------------------------------------


class Relayed:
    def __init__(self, *, is_journal: bool, form: LogFormat = "text") -> None:
        self.reader, writer = os.pipe()
        self._former = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)
        self._relay = StderrRelay(is_journal=is_journal)
        self._relay.format, self._relay.level = form, WARNING

    def write(self, *texts: bytes) -> None:
        for text in texts:
            os.write(2, text)

    def read(self) -> bytes:
        """Return the next of the relay's output."""
        assert select.select([self.reader], [], [], DEADLINE_S)[0]
        return os.read(self.reader, 65536)

    def close(self) -> bytes:
        """End the relay; return the rest of its output."""
        self._relay.close()
        os.dup2(self._former, 2)
        os.close(self._former)
        self._relay._thread.join(DEADLINE_S)
        os.close(self._relay._original)
        rest = b"".join(iter(lambda: os.read(self.reader, 65536), b""))
        os.close(self.reader)
        return rest


LINES = (b"<6>feeder: a\n<3>Traceback\n", b"from C\n", b"<4>feeder: b\n")


@pytest.mark.parametrize(
    ("is_journal", "output"),
    [
        (False, b"feeder: a\nTraceback\nfrom C\nfeeder: b\n"),
        (True, b"<6>feeder: a\n<3>Traceback\n<4>from C\n<4>feeder: b\n"),
    ],
    ids=["terminal", "journal"],
)
def test_marks_reach_the_journal_only(is_journal: bool, output: bytes) -> None:
    relayed = Relayed(is_journal=is_journal)
    relayed.write(*LINES)
    assert relayed.close() == output


def test_text_without_an_end_is_relayed_at_once_where_there_are_no_marks() -> None:
    relayed = Relayed(is_journal=False)
    relayed.write(b"\rpacking 5 %")
    first = relayed.read()
    relayed.write(b"\rpacking 6 %\n")
    assert first + relayed.close() == b"\rpacking 5 %\rpacking 6 %\n"


def test_a_line_in_parts_gets_one_mark_and_one_without_an_end_gets_it() -> None:
    relayed = Relayed(is_journal=True)
    relayed.write(b"from ", b"C\n<6>feeder: a\nunfinished")
    assert relayed.close() == b"<4>from C\n<6>feeder: a\n<4>unfinished\n"


# --- the journal ------------------------------------------------------------------------------


def test_a_line_whose_writer_has_died_does_not_begin_another_one() -> None:
    relay = object.__new__(StderrRelay)
    relay._partial, relay._is_journal, relay.format = b"", False, "json"
    assert relay._complete(b"begun") == b""
    assert relay._complete(b"<4>feeder: b\n") == b"begun\n<4>feeder: b\n"


def test_a_line_that_never_ends_takes_no_more_memory_and_is_cut() -> None:
    relay = object.__new__(StderrRelay)  # without its thread
    relay._partial, relay._is_journal, relay.format = b"", False, "json"
    assert relay._complete(b"first\nx") == b"first\n"
    for _ in range(8):
        assert relay._complete(b"x" * 65536) == b""
        assert len(relay._partial) <= select.PIPE_BUF + 1
    (piece,) = cut_lines(relay._complete(b"x\n"))
    assert piece.endswith(" … (cut)\n".encode())
    assert len(piece) <= select.PIPE_BUF


def test_the_journal_is_recognised_by_device_and_inode() -> None:
    reader, writer = os.pipe()
    status = os.fstat(writer)
    stream = f"{status.st_dev}:{status.st_ino}"
    assert is_journal({"JOURNAL_STREAM": stream}, writer)
    for wrong in ("", stream + "0", f"{status.st_dev}", "x:y"):
        assert not is_journal({"JOURNAL_STREAM": wrong}, writer), wrong
    assert not is_journal({}, writer)
    with open(os.devnull) as other:
        assert not is_journal({"JOURNAL_STREAM": stream}, other.fileno()), "stderr was redirected"
    for end in (reader, writer):
        os.close(end)


# --- logging ----------------------------------------------------------------------------------


class Log:
    """A logger with Feeder's handler, whose output goes to a pipe."""

    def __init__(self, form: LogFormat) -> None:
        self._reader, self._writer = os.pipe()
        self.stream = LineStream("node 0", form, self._writer)
        self.logger = logging.Logger("test", logging.DEBUG)
        self.logger.addHandler(self.stream)

    def lines(self) -> list[str]:
        """Return what was written since."""
        os.write(self._writer, b"\0")
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(self._reader, 65536)
        return text[:-1].decode().splitlines()

    def close(self) -> None:
        self.stream.close()
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log("text")
    yield log
    log.close()


def test_repeated_warnings_are_limited_and_counted(log: Log) -> None:
    before = counters.log_lines_limited
    for number in range(ADMITTED_MAX + 7):
        log.logger.warning("chunk %d cannot be filled", number)
    log.logger.warning("another kind")
    assert log.lines() == [
        *(f"<4>feeder: node 0: warning: chunk {n} cannot be filled" for n in range(ADMITTED_MAX)),
        "<4>feeder: node 0: warning: another kind",
    ]
    assert counters.log_lines_limited == before + 7
    log.stream.close()
    last = ADMITTED_MAX + 6
    assert log.lines() == [
        "<4>feeder: node 0: warning: 7 more like this within 1 s, the latest: "
        f"chunk {last} cannot be filled"
    ]


def test_lines_of_different_kinds_have_limits_of_their_own(log: Log) -> None:
    """A text that is only "%s" says nothing of its kind, so the message does, as for warnings of
    Python; and who logs may name the kind."""
    for number in range(2 * ADMITTED_MAX):
        log.logger.warning("%s", f"library {number}")
    assert len(log.lines()) == 2 * ADMITTED_MAX
    for number in range(6 * ADMITTED_MAX):
        log.logger.warning("bad: %d", number, extra={"kind": f"shard {number % 3}"})
    assert len(log.lines()) == 3 * ADMITTED_MAX


def test_errors_kept_lines_and_those_for_debugging_are_never_limited(log: Log) -> None:
    for _ in range(3 * ADMITTED_MAX):
        log.logger.error("no")
        log.logger.info("draining", extra=KEPT)
        log.logger.debug("opened")
    assert len(log.lines()) == 9 * ADMITTED_MAX


def test_what_is_written_past_logging_is_an_error(log: Log) -> None:
    log.stream.write("Traceback\nfeeder: ")
    log.stream.write("error: no\n")
    log.stream.report("at start")
    assert log.lines() == ["<3>Traceback", "<3>feeder: error: no", "<6>feeder: node 0: at start"]


# --- limits -----------------------------------------------------------------------------------


STEPS = st.lists(st.tuples(st.floats(0, 30), st.sampled_from("abcd"), st.booleans()), max_size=200)
RECORDS = [logging.makeLogRecord({"msg": f"m{number}"}) for number in range(6)]


def test_kinds_have_their_own_limits_up_to_a_number_of_kinds() -> None:
    limits = LogLimiter(admitted_max=3, kinds_max=3)
    assert all(limits.admit(kind, 0.0) for kind in "abc" for _ in range(3))
    assert [limits.admit(f"more {i}", 0.0) for i in range(5)] == [True] * 3 + [False] * 2
    assert limits.admit("fresh", 60.0), "intervals that are over free their kinds"
    assert limits.take_due(1000.0) == [], "lines without a record are counted elsewhere"


@given(STEPS)
def test_every_message_is_admitted_or_counted_once(steps: list[tuple[float, str, bool]]) -> None:
    limits, now_s, admitted, counted = LogLimiter(3, 3), 0.0, 0, 0
    for wait_s, kind, takes in steps:
        now_s += wait_s
        admitted += limits.admit(kind, now_s, RECORDS[0])
        if takes:
            counted += sum(count for count, *_ in limits.take_due(now_s))
    counted += sum(count for count, *_ in limits.take_due(now_s, is_end=True))
    assert admitted + counted == len(steps)
