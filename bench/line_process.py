"""A process of the bench that talks in lines over its standard input and output."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, Self

from feeder.process.python_process import child_environment

STOP_TIMEOUT_S: Final = 10.0


class LineProcess:
    """Our end of it; a context manager that ends it. Reading never waits."""

    def __init__(self, command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> None:
        """Start it where this process may run."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(environ),
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._unread = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether nobody has ended it yet."""
        return not self._output.closed

    def fileno(self) -> int:
        """Return what to poll before ``read_lines``."""
        return self._output.fileno()

    def write_line(self, line: str) -> None:
        """Say something to it."""
        self._input.write(line.encode() + b"\n")
        self._input.flush()

    def read_lines(self) -> list[str] | None:
        """Return the whole lines that it has said since; None once it has ended and said all."""
        try:
            data = os.read(self._output.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [line.decode() for line in lines]

    def wait(self) -> int:
        """Return its exit status once it has closed its output."""
        return self._process.wait(STOP_TIMEOUT_S)

    def terminate(self) -> None:
        """End it cleanly: it closes its session first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: the node hears nothing from it."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def _end(self, number: signal.Signals) -> None:
        if not self.is_open:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._input.close()
        self._output.close()
