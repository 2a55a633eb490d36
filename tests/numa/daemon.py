"""A real `feeder serve`; this process receives its readiness notification, as systemd would."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tests.numa.processes import children, command

START_DEADLINE_S = 150.0  # emulated cores are about twenty times slower
STOP_DEADLINE_S = 30.0


class Daemon:
    """On entry starts and waits until ready; `stop` drains; on exit kills all its processes."""

    def __init__(self, dataset: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feeder-numa-")
        self._log = Path(self._folder.name) / "log"
        self._command = [sys.executable, "-m", "feeder", "serve"]
        self._command += ["--data", f"set={dataset}", *arguments]
        self._known: set[int] = set()

    def __enter__(self) -> "Daemon":
        path = f"{self._folder.name}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(path)
            listener.settimeout(0.5)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command, stderr=log, env={**os.environ, "NOTIFY_SOCKET": path}
                )
            try:
                self._await_ready(listener)
            except BaseException:
                self._kill()
                raise
        self._known = set(self.descendants())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._kill()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def descendants(self) -> list[int]:
        """The pids of all its running processes, orphaned ones included."""
        found = {pid for pid in self._known if command(pid)}
        todo = [self._process.pid]
        while todo:
            todo += (below := children(todo.pop()))
            found |= set(below)
        return sorted(found)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_DEADLINE_S)

    def messages(self) -> str:
        return self._log.read_text()

    def _await_ready(self, listener: socket.socket) -> None:
        until_s = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                if b"READY=1" in listener.recv(4096):
                    return
            except TimeoutError:
                continue
        raise RuntimeError(f"the daemon is not ready in time; its log:\n{self.messages()}")

    def _kill(self) -> None:
        for pid in (self._process.pid, *self.descendants()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
