"""A real `feeder serve` in the guest, and its processes."""

import os
import signal
import sys
from pathlib import Path
from typing import Self

import psutil

from bench.daemon import READY_LINE, DaemonProcess

START_DEADLINE_S = 150.0  # emulated cores are about twenty times slower
STOP_DEADLINE_S = 30.0


class Daemon(DaemonProcess):
    """Ready on entry; on exit all its processes are killed."""

    def __init__(self, dataset: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "feeder", "serve", "--data", f"set={dataset}"]
        super().__init__([*command, *arguments], environ=os.environ)
        self._known: list[psutil.Process] = []

    def __enter__(self) -> Self:
        if self.find_line(READY_LINE, START_DEADLINE_S) is None:
            self.kill()
            raise RuntimeError("the daemon is not ready in time; its log:\n" + "".join(self.lines))
        self._known = self.processes()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.remaining():
            process.kill()
        self.kill()

    def remaining(self) -> list[psutil.Process]:
        """Those of its processes that have not ended."""
        return [process for process in self._known if process.is_running()]

    def end(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_DEADLINE_S)


def children(process: int | psutil.Process, module: str) -> list[psutil.Process]:
    """The children of a process that run a module, in the order in which they started."""
    process = psutil.Process(process) if isinstance(process, int) else process
    found = [child for child in process.children() if module in child.cmdline()]
    return sorted(found, key=lambda child: child.create_time())


def processors(pid: int) -> set[int]:
    """Return the CPUs that a process's threads ran on last (proc(5): field 39 of stat)."""
    stats = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {int(text.rpartition(")")[2].split()[36]) for text in stats}
