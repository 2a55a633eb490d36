"""A live screen: requests reports, draws them, handles keys, until q is pressed or a signal comes.

A daemon that does not answer is named on the screen, which keeps its last report, and is asked
again until it does.

The terminal is given back however the program ends. While it is held, keys are readable one by one
without an echo, and frames go to the alternate screen, so that what was on the terminal before
comes back at the end. SIGINT, SIGQUIT, SIGTERM and SIGHUP must raise an exception
(``feeder.process.stop_signals``); Ctrl-Z gives the terminal back until ``fg``.
"""

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

from rich.console import Console
from rich.control import Control
from rich.screen import Screen
from rich.text import Text

from feeder.errors import FeederError, OutputError
from feeder.metrics.figures import duration
from feeder.metrics.report import HostReport
from feeder.screens.sheet import Sheet, glyphs_for, printable

LATE_S: Final = 2.5
"""A daemon that has not answered for longer, beyond the interval between requests, is named: a
busy one answers within a second."""

_REDRAW_S: Final = 1.0  # for the seconds of a silent daemon
_READ_BYTES: Final = 1024
_PAGE_LINES: Final = 10
_KEYS: Final = re.compile(rb"\x1b\[[0-9;]*[~A-Z]|\x1bO[A-Z]|[\x00-\x7f]")
_STEPS: Final = {
    **dict.fromkeys((b"\x1b[A", b"\x1bOA", b"k"), -1),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB", b"j"), 1),
    **dict.fromkeys((b"\x1b[5~",), -_PAGE_LINES),
    **dict.fromkeys((b"\x1b[6~", b" "), _PAGE_LINES),
    **dict.fromkeys((b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g"), -1_000_000),
    **dict.fromkeys((b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G"), 1_000_000),
}

Draw = Callable[[HostReport, Sheet, int, int, Text], tuple[Sequence[Text], int]]
"""Draws a report on a sheet, with a number of lines, scrolled by an offset, with a note; returns
the lines and the largest offset that still moves something."""


class ReportSource(Protocol):
    """Where reports come from; its calls raise FeederError while there is none."""

    def ask(self) -> None:
        """Request a report."""

    def take(self, wait_s: float, readable: Collection[int]) -> HostReport | None:
        """The report, if it comes before a descriptor is readable."""

    def wait(self, wait_s: float, readable: Collection[int]) -> None:
        """Wait up to ``wait_s``, or until a descriptor is readable."""


class LiveState:
    """What a live screen knows: the last report, since when the daemon is silent, the keys."""

    def __init__(self, report: HostReport, endpoint: str, interval_s: float, now_s: float) -> None:
        """``report`` is the first one; ``interval_s`` is the time between requests."""
        self.report = report
        self.interval_s = interval_s
        self.ask_s = now_s + interval_s  # when the next report is requested
        self.is_asked = False
        self.offset = 0
        self.scroll_max = 0  # as the last drawing has it
        self.is_paused = False
        self.is_done = False
        self._endpoint = endpoint
        self._answered_s = now_s
        self._problem = ""

    def show(self, report: HostReport, now_s: float) -> None:
        """Take a new report; while paused only the fact that it came."""
        if not self.is_paused:
            self.report = report
        self.is_asked = False
        self._answered_s = now_s
        self._problem = ""

    def fail(self, problem: str) -> None:
        """Record why there is no report."""
        self.is_asked = False
        self._problem = problem

    def silence(self, now_s: float) -> str:
        """That and why the daemon does not answer; "" while it does."""
        silent_s = now_s - self._answered_s
        if self.is_paused or silent_s < self.interval_s + LATE_S:
            return ""
        # The deadline of one request is not of interest when many have passed.
        reason = re.sub(r"^no answer from \S+ within \S+ s: ", "", self._problem)
        whole = f"{silent_s:.0f} s" if silent_s < 60 else duration(silent_s)
        text = f"no answer from {self._endpoint} for {whole}"
        return printable(f"{text}: {reason}" if reason else text)

    def on_keys(self, typed: bytes, now_s: float) -> None:
        """Do what the keys in ``typed`` mean; unknown ones mean nothing."""
        for key in _KEYS.findall(typed):
            if key in (b"q", b"Q"):
                self.is_done = True
            elif key in (b"p", b"P"):
                self.is_paused = not self.is_paused
                self._answered_s = now_s
            elif key in _STEPS:
                self.offset = min(self.scroll_max, max(0, self.offset + _STEPS[key]))

    def keys_note(self) -> Text:
        """The keys that do something now."""
        note = Text()
        if self.is_paused:
            note.append("PAUSED", "bold reverse").append("  ")
        keys = "p go on" if self.is_paused else "p pause"
        scroll = "arrows scroll  " if self.scroll_max else ""
        return note.append(f"{scroll}{keys}  q quit", "dim")


def run_live(
    source: ReportSource, state: LiveState, draw: Draw, console: Console, signalled: int
) -> None:
    """Show a live screen until q is pressed; ``state`` then has the last report.

    ``signalled`` gets a byte, its number, for each SIGWINCH and SIGTSTP. Exceptions of other
    signals end it, too, with the terminal as it was before.
    """
    keys = sys.stdin.fileno() if os.isatty(sys.stdin.fileno()) else None
    readable = [signalled] if keys is None else [signalled, keys]
    while not state.is_done:
        is_suspended = False
        with _held_terminal(console, keys):
            while not (state.is_done or is_suspended):
                _draw_frame(state, draw, console)
                _follow(source, state, readable)
                is_suspended = signal.SIGTSTP in _read(signalled)
                if keys is not None:
                    state.on_keys(_read(keys), time.monotonic())
        if is_suspended:
            os.kill(os.getpid(), signal.SIGSTOP)


def _draw_frame(state: LiveState, draw: Draw, console: Console) -> None:
    width, height = console.size
    sheet = Sheet(max(1, width), glyphs_for(console.encoding))
    silence = state.silence(time.monotonic())
    above = sheet.words(silence, "bold white on red") if silence else []
    room = max(1, height - len(above))
    lines, state.scroll_max = draw(state.report, sheet, room, state.offset, state.keys_note())
    state.offset = min(state.offset, state.scroll_max)
    frame = Text("\n", no_wrap=True, overflow="crop", end="").join([*above, *lines][:height])
    with console:  # one write
        console.control(Control.home())
        console.print(Screen(frame), end="")


def _follow(source: ReportSource, state: LiveState, readable: Collection[int]) -> None:
    """Request a report when it is due and take it when it comes, for _REDRAW_S at most."""
    now_s = time.monotonic()
    try:
        if not (state.is_asked or state.is_paused) and now_s >= state.ask_s:
            state.ask_s = now_s + state.interval_s
            source.ask()
            state.is_asked = True
        if not state.is_asked:
            due_s = _REDRAW_S if state.is_paused else state.ask_s - now_s
            source.wait(min(max(0.0, due_s), _REDRAW_S), readable)
        elif (report := source.take(_REDRAW_S, readable)) is not None:
            state.show(report, time.monotonic())
    except FeederError as error:
        state.fail(str(error))


@contextlib.contextmanager
def _held_terminal(console: Console, keys: int | None) -> Iterator[None]:
    """Hold the terminal of standard output, and of standard input where ``keys`` is one, too."""
    saved = [] if keys is None else termios.tcgetattr(keys)
    try:
        if keys is not None:
            tty.setcbreak(keys, termios.TCSANOW)
        console.set_alt_screen(True)
        console.show_cursor(False)
        yield
    finally:
        if keys is not None:
            with contextlib.suppress(termios.error):  # the terminal was closed
                # What was typed ahead stays for the shell.
                termios.tcsetattr(keys, termios.TCSANOW, saved)
        with contextlib.suppress(OutputError):  # as above
            console.show_cursor(True)
            console.set_alt_screen(False)


def _read(descriptor: int) -> bytes:
    """What can be read now; b"q" at the end, as the terminal was closed."""
    if not select.select([descriptor], [], [], 0)[0]:
        return b""
    try:
        return os.read(descriptor, _READ_BYTES) or b"q"
    except OSError:
        return b"q"
