"""Keeps systemd waiting while the daemon packs what it will serve, and shows how far that is.

systemd ends a start that takes longer than TimeoutStartSec=, unless EXTEND_TIMEOUT_USEC= arrives
again and again. A thread sends it, since packing is busy for minutes where nothing is counted. Its
STATUS= is the last line of the packing's output, which passes through here. The unit's watchdog is
no concern: it begins with READY=1.

Source: sd_notify(3), systemd.service(5).
"""

import io
import threading
from typing import Final, Self, TextIO

from feeder.daemon.node_process import START_DEADLINE_S
from feeder.daemon.notify import Notifier
from feeder.process.stop_signals import stop_signals_blocked

EXTENSION_S: Final = START_DEADLINE_S + 30.0
"""From each message; so the last one leaves the node processes the time that they may take."""

_INTERVAL_S: Final = 10.0


class StartExtension(io.TextIOBase):
    """A text stream to ``stream``; while its context is open, systemd waits."""

    def __init__(self, stream: TextIO, notifier: Notifier, *, is_terminal: bool) -> None:
        """``is_terminal``: whether the text ends at one, even if ``stream`` is a pipe to it."""
        self._stream = stream
        self._notifier = notifier
        self._is_terminal = is_terminal
        self._status = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._extend, name="start", daemon=True)

    def isatty(self) -> bool:
        """Return whether progress lines may be redrawn."""
        return self._is_terminal

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Pass text on; its last line becomes the status."""
        lines = text.replace("\x1b[K", "").strip().splitlines()
        self._status = lines[-1] if lines else self._status
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()

    def __enter__(self) -> Self:
        if self._notifier.is_used:
            with stop_signals_blocked():  # the thread inherits the mask
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._notifier.is_used:
            self._thread.join()

    def _extend(self) -> None:
        ended = False
        while not ended:
            self._notifier.extend_start(EXTENSION_S, self._status)
            ended = self._ended.wait(_INTERVAL_S)
        self._notifier.extend_start(EXTENSION_S, self._status)
