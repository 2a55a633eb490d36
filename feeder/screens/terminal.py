"""A terminal that is taken over for a live screen and given back, however the program ends.

While it is held, keys are readable one by one without an echo, and frames go to the alternate
screen, so that what was on the terminal before comes back at the end. SIGINT, SIGQUIT, SIGTERM and
SIGHUP must raise an exception (``feeder.process.stop_signals``); Ctrl-Z gives the terminal back
until ``fg``.
"""

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from feeder.errors import OutputError

_READ_BYTES: Final = 1024
_SIGNALS: Final = (signal.SIGWINCH, signal.SIGTSTP)


class Terminal:
    """The terminal of standard output, and of standard input where that is one, too."""

    def __init__(self, console: Console) -> None:
        """``console`` writes to standard output, a terminal."""
        self._console = console
        self._keys = sys.stdin.fileno() if os.isatty(sys.stdin.fileno()) else None
        self._live: Live | None = None
        self._stack = contextlib.ExitStack()
        self._signalled = -1

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._signalled = stack.enter_context(_signal_descriptor())
            stack.callback(self._release)
            self._hold()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def readable(self) -> tuple[int, ...]:
        """Descriptors that become readable with a key or a signal."""
        return (self._signalled,) if self._keys is None else (self._signalled, self._keys)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        return self._console.size

    def draw(self, lines: Sequence[Text]) -> None:
        """Show a frame."""
        if self._live is not None:
            shown = Text("\n", no_wrap=True, overflow="crop", end="").join(lines)
            self._live.update(Group(shown), refresh=True)

    def read_keys(self) -> bytes:
        """Return what was typed, "q" when the terminal has gone; handle signals. Never blocks."""
        for number in _read(self._signalled) or b"":
            if number == signal.SIGTSTP:
                self._suspend()
        if self._keys is None:
            return b""
        typed = _read(self._keys)
        return b"q" if typed == b"" else typed or b""

    def _hold(self) -> None:
        if self._keys is not None:
            self._saved = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _release(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                with contextlib.suppress(OutputError):  # the terminal was closed
                    live.stop()
        finally:
            if self._keys is not None:
                with contextlib.suppress(termios.error):  # as above
                    # What was typed ahead stays for the shell.
                    termios.tcsetattr(self._keys, termios.TCSANOW, self._saved)

    def _suspend(self) -> None:
        self._release()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._hold()


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


def _read(descriptor: int) -> bytes | None:
    """Return what can be read now, b"" at the end, None where there is nothing."""
    import select

    if not select.select([descriptor], [], [], 0)[0]:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:  # the terminal was closed
        return b""
