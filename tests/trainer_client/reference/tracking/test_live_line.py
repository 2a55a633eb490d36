"""The live line on a terminal, emulated by pyte, and in a log file."""

import fcntl
import io
import itertools
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import Any

import pyte
import pytest

from tests.trainer_client.reference.tracking.reports import make_result, make_run, make_step
from trainer_client.reference.tracking.live_line import LiveLine

LINE = "epoch 3/90 120/391 · loss 2.318 · 1,204 images/s · waits 2 % · 3 h 12 min left"


class Terminal:
    """A pseudo-terminal: ``stream`` writes to it, ``lines`` is what it shows."""

    def __init__(self, columns: int = 80, encoding: str = "utf-8") -> None:
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding=encoding)
        self.screen: Any = pyte.Screen(columns, 6)
        self._emulator: Any = pyte.ByteStream(self.screen)
        self.written = b""
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 6, columns, 0, 0))

    def lines(self) -> list[str]:
        """Return the lines that are not empty, once all that was written is shown."""
        os.write(self.stream.fileno(), b"\0")  # shows nothing
        while not self.written.endswith(b"\0"):
            self.written += (data := os.read(self._ours, 65_536))
            self._emulator.feed(data)
        self.written = self.written.replace(b"\0", b"")
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def begin(stream: Any) -> LiveLine:
    line = LiveLine(stream, clock=itertools.count().__next__)  # a second for each reading
    line.begin(make_run(epochs=90, steps_per_epoch=391))
    return line


def step(number: int = 120, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        **{"epoch": 3, "step": number, "steps_per_epoch": 391, "loss": 2.318},
        **{"remaining_s": 11_520.0, **changes},
    }
    return make_step(3 * 391 + number, **fields)


def test_the_line_is_rewritten_in_place_and_leaves_nothing_of_a_longer_one(
    terminal: Terminal,
) -> None:
    line = begin(terminal.stream)
    for number in (100, 110, 120):
        line.log_step(step(number))
    assert terminal.lines() == [LINE]
    line.log_step(step(1, remaining_s=5.0))
    assert terminal.lines() == [
        "epoch 3/90 1/391 · loss 2.318 · 1,204 images/s · waits 2 % · 5.0 s left"
    ]


@pytest.mark.parametrize("columns", [1, 62, 78, 79, 80])
def test_the_line_is_never_wider_than_the_terminal(columns: int) -> None:
    terminal = Terminal(columns)
    line = begin(terminal.stream)
    for number in (1, 120, 391):
        line.log_step(step(number))
    shown = terminal.lines()
    assert len(shown) <= 1
    assert terminal.screen.cursor.x <= columns - 1
    assert (shown == [LINE.replace("120/", "391/")]) == (columns > len(LINE))
    line.close()
    assert terminal.lines() == []
    terminal.close()


def test_other_lines_go_above_it(terminal: Terminal) -> None:
    line = begin(terminal.stream)
    line.print_line("before")
    line.log_step(step())
    line.print_line("epoch 2: a line")
    line.print_line("x" * 100)
    assert terminal.lines() == ["before", "epoch 2: a line", "x" * 80, "x" * 20, LINE]


@pytest.mark.parametrize("ending", ["epoch", "close"])
def test_what_follows_it_is_on_a_line_of_its_own(terminal: Terminal, ending: str) -> None:
    line = begin(terminal.stream)
    line.log_step(step())
    line.begin_evaluation(3)
    assert terminal.lines() == ["evaluating after epoch 3/90"]
    if ending == "epoch":
        line.end_epoch(make_result(3))
    else:
        line.close()
    assert terminal.lines() == []
    line.close()
    terminal.stream.write("train: error: no feeder")
    terminal.stream.flush()
    assert terminal.lines() == ["train: error: no feeder"]


def test_a_log_file_gets_a_line_each_half_minute() -> None:
    stream = io.StringIO()
    line = begin(stream)
    for number in range(1, 92):
        line.log_step(step(number))
    line.begin_evaluation(3)
    line.end_epoch(make_result(3))
    line.print_line("epoch 3: the result")
    line.close()
    *progress, last = stream.getvalue().splitlines()
    assert [text.split()[2] for text in progress] == ["1/391", "31/391", "61/391", "91/391"]
    assert progress[0].strip() == LINE.replace("120/", "1/").replace("·", "-")
    assert last == "epoch 3: the result"
    assert "\r" not in stream.getvalue()
