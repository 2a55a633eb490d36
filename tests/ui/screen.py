"""A program on a pseudo-terminal, and what its terminal shows.

``pyte`` emulates the terminal; a thread feeds it what the program writes.
"""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pyte

from tests.support.daemon import wait_until
from tests.support.sources import REPOSITORY

_ENTER_ALTERNATE, _LEAVE_ALTERNATE = b"\x1b[?1049h", b"\x1b[?1049l"
_HIDE_CURSOR, _SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
_MODES = 3  # of what tcgetattr returns: the flags of echo and of line editing


class ScreenProgram:
    """A program that runs on a terminal of its own, as its session's leader."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        environ: dict[str, str] | None = None,
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self._ended, self._stop_reading = os.pipe()
        self._nowhere = os.open(os.devnull, os.O_RDWR)
        self.written = bytearray()
        """Everything that it has written."""
        self._screen: Any = pyte.Screen(columns, lines)
        self._stream: Any = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._set_size(columns, lines)
        self.modes_before = termios.tcgetattr(self._theirs)[:_MODES]
        kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environ or {})},
        )
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the screen showed:\n{self.text()}")
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._reader.join(60)
        for descriptor in (self._ours, self._ended, self._stop_reading, self._nowhere):
            os.close(descriptor)

    def text(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_text(self, *parts: str) -> str:
        wait_until(lambda: all(part in self.text() for part in parts), f"{parts} on the screen")
        return self.text()

    def wait_without(self, part: str) -> None:
        wait_until(lambda: part not in self.text(), f"no {part!r} on the screen")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the terminal's size; its programs get a signal."""
        with self._lock:
            self._screen.resize(lines, columns)
        self._set_size(columns, lines)

    def end(self) -> int:
        """The exit status once the program has ended and all it wrote was read."""
        status = self.process.wait(60)
        marker = b"\0end of output\0"
        os.write(self._theirs, marker)
        wait_until(lambda: marker in self.written, "the rest of the output")
        return status

    def check_restored(self) -> None:
        """Check that the terminal is as it was before the program: modes, cursor, screen."""
        assert termios.tcgetattr(self._theirs)[:_MODES] == self.modes_before
        for entered, left in (
            (_ENTER_ALTERNATE, _LEAVE_ALTERNATE),
            (_HIDE_CURSOR, _SHOW_CURSOR),
        ):
            assert entered in self.written, "it was a live screen"
            self._wait_after(entered, left)

    def _wait_after(self, earlier: bytes, later: bytes) -> None:
        """Until ``later`` was read after the last ``earlier``; a stopped program wrote it."""
        wait_until(
            lambda: self.written.rfind(later) > self.written.rfind(earlier),
            f"{later!r} after {earlier!r}",
        )

    def is_live(self) -> bool:
        """Whether the program now has the terminal for itself: no echo, no line editing."""
        flags = termios.tcgetattr(self._theirs)[_MODES]
        return not flags & (termios.ECHO | termios.ICANON)

    def has_stopped(self) -> bool:
        """Whether the program was suspended, as by Ctrl-Z."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "T"

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def hang_up(self) -> None:
        os.write(self._stop_reading, b"x")  # a read that waits would keep it open
        self._reader.join(60)
        for end in (self._theirs, self._ours):
            os.dup2(self._nowhere, end)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while select.select([self._ours, self._ended], [], [])[0] != [self._ended]:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # the last descriptor of the other side was closed
                return
            if not data:
                return
            with self._lock:
                self.written += data
                self._stream.feed(data.replace(b"\0", b""))


_UNWANTED = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "LC_CTYPE", "LANG")
