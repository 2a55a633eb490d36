"""The loop of a live screen: requests reports, draws them, handles keys.

A daemon that does not answer is named on the screen, which keeps its last report, and is asked
again until it does.
"""

import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from rich.console import Console
from rich.text import Text

from feeder.errors import FeederError
from feeder.metrics.report import HostReport
from feeder.screens.frame import Frame
from feeder.screens.glyphs import glyphs_for
from feeder.screens.live_state import LiveState
from feeder.screens.sheet import Sheet
from feeder.screens.terminal import Terminal

_REDRAW_S: Final = 1.0
"""For the seconds of a silent daemon."""

Draw = Callable[[HostReport, Sheet, int, int, Text], Frame]
"""Draws a report on a sheet, with a number of lines, scrolled by an offset, with a note."""


class ReportSource(Protocol):
    """Where reports come from."""

    def ask(self) -> None:
        """Request a report; FeederError if that fails."""

    def take(self, wait_s: float, readable: Collection[int]) -> HostReport | None:
        """Return the report if it comes in time and before a descriptor is readable.

        FeederError when it will not come; the request is then over.
        """

    def wait(self, wait_s: float, readable: Collection[int]) -> None:
        """Wait up to ``wait_s``, or until a descriptor is readable."""


def run_live(source: ReportSource, state: LiveState, draw: Draw, console: Console) -> None:
    """Show a live screen until q is pressed; ``state`` then has the last report.

    Exceptions of signals end it, too, with the terminal as it was before.
    """
    ask_s = time.monotonic() + state.interval_s
    is_asked = False
    glyphs = glyphs_for(console.encoding)
    with Terminal(console) as terminal:
        while True:
            width, height = terminal.size
            _show(terminal, state, draw, Sheet(max(1, width), glyphs), height)
            now_s = time.monotonic()
            if not is_asked and not state.is_paused and now_s >= ask_s:
                ask_s = now_s + state.interval_s
                is_asked = _ask(source, state)
            until_s = now_s + _REDRAW_S if is_asked or state.is_paused else ask_s
            wait_s = max(0.0, min(until_s, now_s + _REDRAW_S) - now_s)
            if is_asked:
                is_asked = _take(source, state, wait_s, terminal)
            else:
                source.wait(wait_s, terminal.readable)
            state.on_keys(terminal.read_keys(), time.monotonic())
            if state.is_done:
                return


def _show(terminal: Terminal, state: LiveState, draw: Draw, sheet: Sheet, height: int) -> None:
    silence = state.silence(time.monotonic())
    above = sheet.words(silence, "bold white on red") if silence else []
    frame = draw(state.report, sheet, max(1, height - len(above)), state.offset, state.keys_note())
    state.scroll_max = frame.scroll_max
    state.offset = min(state.offset, frame.scroll_max)
    terminal.draw([*above, *frame.lines][:height])


def _ask(source: ReportSource, state: LiveState) -> bool:
    try:
        source.ask()
    except FeederError as error:
        state.fail(str(error))
        return False
    return True


def _take(source: ReportSource, state: LiveState, wait_s: float, terminal: Terminal) -> bool:
    """Return whether the report is still to come."""
    try:
        report = source.take(wait_s, terminal.readable)
    except FeederError as error:
        state.fail(str(error))
        return False
    if report is None:
        return True
    state.show(report, time.monotonic())
    return False
