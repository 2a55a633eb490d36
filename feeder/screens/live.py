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
import termios
import time
import tty
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any, Final, Protocol

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

_REDRAW_S: Final = 1.0
"""For the seconds of a silent daemon."""

_READ_BYTES: Final = 1024
_SIGNALS: Final = (signal.SIGWINCH, signal.SIGTSTP)
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
        self._answered_s = now_s
        self._problem = ""

    def fail(self, problem: str) -> None:
        """Record why there is no report."""
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


def run_live(source: ReportSource, state: LiveState, draw: Draw, console: Console) -> None:
    """Show a live screen until q is pressed; ``state`` then has the last report.

    Exceptions of signals end it, too, with the terminal as it was before.
    """
    ask_s = time.monotonic() + state.interval_s
    is_asked = False
    glyphs = glyphs_for(console.encoding)
    with contextlib.ExitStack() as stack:
        terminal = _Terminal(console, stack.enter_context(_signal_descriptor()))
        stack.callback(terminal.release)
        terminal.hold()
        while not state.is_done:
            width, height = console.size
            terminal.draw(_draw_frame(state, draw, Sheet(max(1, width), glyphs), height))
            now_s = time.monotonic()
            try:
                if not is_asked and not state.is_paused and now_s >= ask_s:
                    ask_s = now_s + state.interval_s
                    source.ask()
                    is_asked = True
                until_s = now_s + _REDRAW_S if is_asked or state.is_paused else ask_s
                wait_s = max(0.0, min(until_s - now_s, _REDRAW_S))
                if not is_asked:
                    source.wait(wait_s, terminal.readable)
                elif (report := source.take(wait_s, terminal.readable)) is not None:
                    is_asked = False
                    state.show(report, time.monotonic())
            except FeederError as error:
                is_asked = False
                state.fail(str(error))
            state.on_keys(terminal.read_keys(), time.monotonic())


def _draw_frame(state: LiveState, draw: Draw, sheet: Sheet, height: int) -> Sequence[Text]:
    silence = state.silence(time.monotonic())
    above = sheet.words(silence, "bold white on red") if silence else []
    room = max(1, height - len(above))
    lines, state.scroll_max = draw(state.report, sheet, room, state.offset, state.keys_note())
    state.offset = min(state.offset, state.scroll_max)
    return [*above, *lines][:height]


class _Terminal:
    """The terminal of standard output, and of standard input where that is one, too."""

    def __init__(self, console: Console, signalled: int) -> None:
        self._console = console
        self._signalled = signalled
        self._keys = 0 if os.isatty(0) else None
        self._saved: list[Any] | None = None
        self.readable = [signalled] if self._keys is None else [signalled, self._keys]

    def draw(self, lines: Sequence[Text]) -> None:
        """Show a frame."""
        frame = Text("\n", no_wrap=True, overflow="crop", end="").join(lines)
        with self._console:  # one write
            self._console.control(Control.home())
            self._console.print(Screen(frame), end="")

    def read_keys(self) -> bytes:
        """What was typed; "q" when the terminal has gone. Handles signals and never blocks."""
        if signal.SIGTSTP in _read(self._signalled):
            self.release()
            os.kill(os.getpid(), signal.SIGSTOP)
            self.hold()
        return b"" if self._keys is None else _read(self._keys)

    def hold(self) -> None:
        """Take the terminal, or take it again."""
        if self._keys is not None:
            self._saved = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def release(self) -> None:
        """Give it back as it was."""
        try:
            with contextlib.suppress(OutputError):  # the terminal was closed
                self._console.show_cursor(True)
                self._console.set_alt_screen(False)
        finally:
            if self._keys is not None and self._saved is not None:
                with contextlib.suppress(termios.error):  # as above
                    # What was typed ahead stays for the shell.
                    termios.tcsetattr(self._keys, termios.TCSANOW, self._saved)


@contextlib.contextmanager
def _signal_descriptor() -> Iterator[int]:
    """Yield a descriptor that gets a byte, its number, for each signal of a terminal."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in _SIGNALS:
            before[number] = signal.signal(number, lambda *_: None)
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _read(descriptor: int) -> bytes:
    """What can be read now; b"q" at the end, as the terminal was closed."""
    if not select.select([descriptor], [], [], 0)[0]:
        return b""
    try:
        return os.read(descriptor, _READ_BYTES) or b"q"
    except OSError:
        return b"q"
