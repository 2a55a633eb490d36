"""One progress line with an estimate of the remaining time.

On a terminal the line is redrawn a few times a second; elsewhere a plain line is written every few
seconds, so that logs stay short.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

_REDRAW_S: Final = 0.2
_PLAIN_LINE_S: Final = 10.0


class ProgressLine:
    """Progress of one count at a time, written to ``stream``."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_terminal: bool | None = None,
    ) -> None:
        """``is_terminal``: whether the text ends at one, even if ``stream`` is a pipe to it."""
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty() if is_terminal is None else is_terminal
        self._verb = self._unit = ""
        self._total: int | None = 0
        self._done = self._skipped = self._bytes = self._quarantined = 0
        self._began_s = self._drawn_s = clock()
        self._drawn = False

    def begin(self, verb: str, unit: str, total: int | None, done: int = 0) -> None:
        """Start counting to ``total``, None where that is unknown.

        ``done`` were done by an earlier run, so rates skip them.
        """
        self._verb, self._unit = verb, unit
        self._total, self._done, self._skipped = total, done, done
        self._bytes = self._quarantined = 0
        self._began_s = self._drawn_s = self._clock()
        self._drawn = False

    def add(self, count: int, size_bytes: int = 0, quarantined: int = 0) -> None:
        """Add to the counts, and redraw if it is time."""
        self._done += count
        self._quarantined += quarantined
        self._bytes += size_bytes
        now_s = self._clock()
        if now_s - self._drawn_s >= (_REDRAW_S if self._terminal else _PLAIN_LINE_S):
            self._drawn_s = now_s
            self._draw()

    def count(self, message: Mapping[str, Any]) -> None:
        """Add the counts in a task's message."""
        counts = (message.get(name, 0) for name in ("count", "bytes", "quarantined"))
        self.add(*counts)

    def end(self) -> None:
        """Draw the final state and leave the line."""
        self._draw()
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()
        self._drawn = False

    def clear(self) -> None:
        """Erase the line, so that other output can take its row."""
        if self._terminal and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._drawn = False

    def note(self, text: str) -> None:
        """Write ``text`` as a line of its own."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _draw(self) -> None:
        if self._terminal:
            self._stream.write(f"\r{self.line()}\x1b[K")
        else:
            self._stream.write(f"{self.line()}\n")
        self._stream.flush()
        self._drawn = True

    def line(self) -> str:
        """Return e.g. ``packing 50/200 images (25 %), 310 images/s, 33.5 MB/s, 0:15 left``."""
        seconds = max(self._clock() - self._began_s, 1e-9)
        rate = (self._done - self._skipped) / seconds
        text = f"{self._verb} {self._done:,} {self._unit}"
        if self._total is not None:
            share = 100 * self._done // self._total if self._total else 100
            text = f"{self._verb} {self._done:,}/{self._total:,} {self._unit} ({share} %)"
        text += f", {rate:{'.1f' if 0 < rate < 10 else ',.0f'}} {self._unit}/s"
        if self._bytes:
            text += f", {self._bytes / seconds / 1e6:,.1f} MB/s"
        if self._quarantined:
            text += f", {self._quarantined:,} quarantined"
        remaining_s = self.remaining_s()
        if remaining_s is not None:
            text += f", {format_duration(remaining_s)} left"
        return text

    def remaining_s(self) -> float | None:
        """Return the time until the count is complete, None where that is not known."""
        done = self._done - self._skipped
        if self._total is None or done <= 0 or self._done >= self._total:
            return None
        return (self._clock() - self._began_s) * (self._total - self._done) / done


def format_duration(seconds: float) -> str:
    """Return e.g. ``0:09``, ``12:30`` or ``3:05:00``."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
