"""What processes of a soak have used of their core, and how long they have waited for it.

Source: proc(5), Documentation/scheduler/sched-stats.rst (/proc/PID/task/TID/schedstat).
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Totals of some processes since their start."""

    cpu_s: float
    waited_s: float | None
    """Time in which threads could run and another one ran on the core; None if unknown."""

    def __add__(self, other: "CpuUse") -> "CpuUse":
        """Return the totals of both."""
        waited_s = None
        if self.waited_s is not None and other.waited_s is not None:
            waited_s = self.waited_s + other.waited_s
        return CpuUse(cpu_s=self.cpu_s + other.cpu_s, waited_s=waited_s)

    @classmethod
    def of_processes(cls, pids: Iterable[int], *, root: Path = _PROC) -> "CpuUse":
        """Return the totals of those that run."""
        total = cls(cpu_s=0.0, waited_s=0.0 if counts_waits(root) else None)
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                total += cls(cpu_s=times.user + times.system, waited_s=_read_ns(pid, root)[1] / 1e9)
        return total


def counts_waits(root: Path = _PROC) -> bool:
    """Return whether the kernel counts waits; without CONFIG_SCHED_INFO all is 0 or missing."""
    return _read_ns("self", root)[0] > 0


def _read_ns(process: int | str, root: Path) -> tuple[int, int]:
    """Return how long the threads of a process have run and waited; 0 of one that has ended."""
    running, waiting = 0, 0
    for path in (root / str(process) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = path.read_text().split()
            running += int(fields[0])
            waiting += int(fields[1])
    return running, waiting
