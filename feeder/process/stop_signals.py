"""Signals that stop a process: deferred, raised as KeyboardInterrupt, or by a descriptor."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until after the body; child processes inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_SIGNALS, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignals:
    """While open, the first SIGINT or SIGTERM raises KeyboardInterrupt; later ones, which would
    interrupt the clean-up, are ignored."""

    def __init__(self, *also: signal.Signals) -> None:
        """``also`` are more signals that do so, unless they are ignored, as SIGHUP under nohup."""
        heeded = (number for number in also if signal.getsignal(number) != signal.SIG_IGN)
        self._signals = (*_SIGNALS, *heeded)
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for handled in self._signals:
            signal.signal(handled, signal.SIG_IGN)
        self.received = signal.Signals(number)
        raise KeyboardInterrupt

    @property
    def name(self) -> str:
        """The name of the signal, as SIGTERM."""
        return (self.received or signal.SIGINT).name

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal, as in shells."""
        return 128 + (self.received or signal.SIGINT)


class SignalWakeup:
    """Makes a descriptor readable when a signal arrives; create it once, in the main thread.

    A Python handler runs between any two instructions, where little is safe: the loop acts instead.
    """

    def __init__(self, watched: Iterable[signal.Signals]) -> None:
        """Install handlers for the ``watched`` signals and unblock them."""
        watched = tuple(watched)
        self._reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in watched:
            signal.signal(number, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)

    def fileno(self) -> int:
        return self._reader

    def take(self) -> bool:
        """Whether a watched signal has arrived since the last call."""
        try:
            return bool(os.read(self._reader, 4096))
        except BlockingIOError:
            return False
