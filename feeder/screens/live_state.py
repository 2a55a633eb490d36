"""What a live screen knows: the last report, how long the daemon has been silent, the keys so far.

Pure: the caller passes the time.
"""

import re
from typing import Final

from rich.text import Text

from feeder.metrics.report import HostReport
from feeder.screens.figures import duration, printable

LATE_S: Final = 2.5
"""A daemon that has not answered for longer, beyond the interval between requests, is named: a
busy one answers within a second."""

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


class LiveState:
    """The state of a live screen: the loop changes it, the drawing reads it."""

    def __init__(self, report: HostReport, endpoint: str, interval_s: float, now_s: float) -> None:
        """``report`` is the first one; ``interval_s`` is the time between requests."""
        self.report = report
        self.offset = 0
        self.scroll_max = 0
        """Set by the drawing: the largest offset."""
        self.is_paused = False
        self.is_done = False
        self._endpoint = endpoint
        self.interval_s = interval_s
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
        """Return that and why the daemon does not answer; "" while it does."""
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
        """Return the keys that do something now."""
        note = Text()
        if self.is_paused:
            note.append("PAUSED", "bold reverse").append("  ")
        keys = "p go on" if self.is_paused else "p pause"
        scroll = "arrows scroll  " if self.scroll_max else ""
        return note.append(f"{scroll}{keys}  q quit", "dim")
