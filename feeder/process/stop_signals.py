"""Lets Ctrl-C and SIGTERM end a command the same way: by a KeyboardInterrupt in the main thread."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HELD_BACK = (*_SIGNALS, signal.SIGHUP)


@contextmanager
def stop_signals_held_back() -> Iterator[None]:
    """Deliver SIGINT, SIGTERM and SIGHUP after the body, not within it.

    For what must not be half done. Processes that are started within it begin with these signals
    blocked, so that none reaches a process that has not yet chosen how to handle it: a terminal or
    batch system signals all processes, also those that have only just begun to start.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignals:
    """While open, the first SIGINT or SIGTERM raises KeyboardInterrupt; later ones are ignored.

    They are ignored so that nothing interrupts the clean-up that the first one began.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        self.received = signal.Signals(number)
        raise KeyboardInterrupt

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal, as shells have it."""
        return 128 + (self.received or signal.SIGINT)
