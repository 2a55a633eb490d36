"""Keeps standard error from blocking any process of the daemon.

    supervisor, node processes, workers ──► a pipe, as descriptor 2 ──► thread ──► original stderr

A full pipe, a terminal under Ctrl-S or a hanging journal blocks its writers, and O_NONBLOCK belongs
to the open file, which the daemon shares with the shell that started it. So descriptor 2 becomes a
pipe of the daemon's own, which child processes inherit, with a non-blocking write end.

Lines in the pipe begin with their priority (``log_lines``), except for those of C libraries, of
crashes, and from before logging has started. In the journal all lines have one, elsewhere none.
"""

import atexit
import os
import re
import select
import threading
from collections.abc import Mapping
from logging import INFO
from typing import Final

from feeder.process.log_lines import LogFormat, cut_lines, mark_line
from feeder.process.stop_signals import stop_signals_blocked

_MARK: Final = re.compile(rb"^<[0-7]>")
_READ_BYTES: Final = 64 * 1024
"""A pipe's capacity, so that no write is split between two reads."""


class StderrRelay:
    """Relays descriptor 2 until the process exits."""

    def __init__(self, *, is_journal: bool = False) -> None:
        """Replace descriptor 2, which is open, by the pipe."""
        # For lines without a mark from now on; may be set at any time.
        self.format: LogFormat = "text"
        self.level = INFO
        self._is_journal = is_journal
        self._partial = b""
        self._original = os.dup(2)
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._thread = threading.Thread(target=self._relay, name="stderr", daemon=True)
        # The thread inherits the mask. The kernel may deliver a signal to any thread that does not
        # block it, and the main thread would not notice until later.
        with stop_signals_blocked():
            self._thread.start()  # first, so that descriptor 2 is unchanged if this raises
        os.dup2(writer, 2)
        os.close(writer)
        atexit.register(self.close)

    def close(self) -> None:
        """Wait until the pipe is drained, for a second at most: stderr may not be read."""
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)  # the relay ends with the last writer
        self._thread.join(1.0)

    def _relay(self) -> None:
        while read := os.read(self._reader, _READ_BYTES):
            self._write(self._complete(read))
        if self._partial:
            self._write(self._partial + b"\n")

    @property
    def _needs_whole_lines(self) -> bool:
        # Plain text need not be whole: it may be a progress line, which has no end.
        return self._is_journal or self.format == "json"

    def _complete(self, read: bytes) -> bytes:
        """Take the lines to write now; the beginning of another one may wait for its end."""
        if self._partial and _MARK.match(read):
            read = b"\n" + read  # its writer has died, or goes on later
        text, self._partial = self._partial + read, b""
        if not self._needs_whole_lines:
            return text
        lines, newline, partial = text.rpartition(b"\n")
        # One byte too many, so that the line is cut in the end; and no memory for the rest.
        self._partial = partial[: select.PIPE_BUF + 1]
        return lines + newline

    def _write(self, lines: bytes) -> None:
        for line in cut_lines(lines):
            if self._needs_whole_lines and not _MARK.match(line):
                line = mark_line(line, self.format, self.level)
            if not self._is_journal:
                line = _MARK.sub(b"", line)
            while line:
                try:
                    line = line[os.write(self._original, line) :]
                except BlockingIOError:  # another process made it non-blocking
                    select.select([], [self._original], [])
                except OSError:  # its reader has gone, or the disk is full, which may pass
                    break


def is_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Whether ``fd`` is the stream that systemd has connected to the journal.

    $JOURNAL_STREAM alone is no proof: processes with another stderr inherit it, too.
    Source: systemd.exec(5).
    """
    status = os.fstat(fd)
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
