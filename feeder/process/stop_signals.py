"""Makes other signals end a command as Ctrl-C does: by a KeyboardInterrupt in the main thread."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BLOCKED = (*_SIGNALS, signal.SIGHUP)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until after the body, which must not be interrupted.

    Child processes that are started in it inherit the blocked signals, so that none arrives before
    they have set their handlers: a terminal or batch system signals all processes, also those that
    are just starting.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignals:
    """While open, the first SIGINT or SIGTERM raises KeyboardInterrupt; later ones are ignored.

    So nothing interrupts the clean-up after the first one.
    """

    def __init__(self, *also: signal.Signals) -> None:
        """``also`` are more signals that do so, unless they are ignored, as SIGHUP under nohup."""
        self._signals = (*_SIGNALS, *also)
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            if number in _SIGNALS or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        self.received = signal.Signals(number)
        raise KeyboardInterrupt

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal, as in shells."""
        return 128 + (self.received or signal.SIGINT)
