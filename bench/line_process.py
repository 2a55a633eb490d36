"""Child processes of the bench and the tests: how they start, exchange lines over pipes, and stop.

A child dies with us where it calls ``die_with_parent``, as ``dying_with_us`` does for other
programs; nothing else here ends one after our SIGKILL.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from feeder.process.child import child_environment

STOP_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_DIE_AND_EXECUTE: Final = (
    "import os, sys; from feeder.process.child import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
)


def start_process(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Start a child, without ``environ`` in ``child_environment()``; ``options`` are Popen's."""
    env = child_environment() if environ is None else environ
    # Its own session: Ctrl-C then reaches us alone, and we stop it.
    return subprocess.Popen(command, env=env, stdin=stdin, start_new_session=True, **options)


def stop_process(
    process: "subprocess.Popen[bytes]",
    number: signal.Signals = signal.SIGTERM,
    timeout_s: float = STOP_TIMEOUT_S,
) -> None:
    """Signal a child and reap it; SIGKILL if it has not ended by then. Idempotent."""
    process.send_signal(number)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def dying_with_us(*command: str) -> list[str]:
    """Return a command that executes ``command``, of a program that is not ours, in its process:
    the kernel ends it when we end."""
    return [sys.executable, "-P", "-c", _DIE_AND_EXECUTE, str(os.getpid()), *command]


def await_port(port: int, process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Return whether the loopback address listens on a port before its process ends."""
    until_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s):
            return True
        time.sleep(0.01)  # no event says that it listens
    return False


class LineProcess:
    """A child that exchanges lines with us; a context manager that ends it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        replies: str | None = None,
        log: int | None = None,
    ) -> None:
        """Start it; OSError if that fails.

        Its lines come from standard output, or, if ``replies`` is given, from a pipe whose number
        is in that environment variable; standard output and error then go to ``log``.
        """
        self._output, theirs = os.pipe()
        options: dict[str, Any] = {"stdout": theirs}
        if replies is not None:
            environ = {
                **(child_environment() if environ is None else environ),
                replies: str(theirs),
            }
            options = {"stdout": log, "pass_fds": [theirs]}
        try:
            self._process = start_process(
                command, environ=environ, stdin=subprocess.PIPE, stderr=log, cwd=cwd, **options
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
        self.pid = self._process.pid  # which is also its process group
        self.is_open = True  # ``terminate`` and ``kill`` have not been called
        os.set_blocking(self._output, False)
        self._lines: deque[str] = deque()
        self._partial = b""

    def fileno(self) -> int:
        """Return what to poll before ``read_lines``."""
        return self._output

    def write_line(self, line: str) -> None:
        """Send it a line; OSError when it has ended."""
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), line.encode() + b"\n")

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read_lines(self) -> list[str] | None:
        """Return the whole lines received so far, without waiting; None at the end of them."""
        is_open = self._receive()
        lines = [*self._lines]
        self._lines.clear()
        return lines if lines or is_open else None

    def next_line(self, timeout_s: float) -> str:
        """Return its next line; TimeoutError when there is none in time, EOFError at the end."""
        until_s = time.monotonic() + timeout_s
        while not self._lines:
            remaining_s = max(0.0, until_s - time.monotonic())
            if not select.select([self._output], [], [], remaining_s)[0]:
                raise TimeoutError(f"no line from process {self.pid} within {timeout_s:g} s")
            if not self._receive() and not self._lines:
                raise EOFError(f"process {self.pid} has closed its output")
        return self._lines.popleft()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Return its exit status once it has ended; TimeoutExpired when it does not."""
        return self._process.wait(timeout_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, unless it has been reaped."""
        self._process.send_signal(number)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it, and SIGKILL it if it does not end in time. Idempotent."""
        if self.is_open:
            self.is_open = False
            stop_process(self._process, number)
            self.close_input()
            os.close(self._output)

    def kill(self) -> None:
        self.terminate(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def _receive(self) -> bool:
        """Take in what has arrived; return whether more may follow."""
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines += [line.decode(errors="replace") for line in lines]
        return bool(data)
