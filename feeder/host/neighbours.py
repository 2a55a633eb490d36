"""Which other processes use the CPUs, from two looks at /proc.

A look reads a file of each process, so it is for the moment when that is asked: 10 ms for a
thousand processes. In a container /proc shows only its own processes.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from feeder.host.process_load import read_small
from feeder.metrics.report import Neighbour
from feeder.process.path_text import printable

SHOWN_MAX: Final = 3
LITTLE_CPUS: Final = 0.05
"""A process that uses less is not named."""

_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12
"""Positions in /proc/PID/stat after the name."""

_NAME_CHARS: Final = 64
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")


class NeighbourFinder:
    """Finds the processes that use most CPU time, leaving out the daemon and its clients."""

    __slots__ = ("_proc", "_seen", "_seen_s")

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: Mapping[int, float] = {}  # CPU seconds by process
        self._seen_s = 0.0

    def look(self, known: Collection[int], now_s: float) -> tuple[Neighbour, ...]:
        """Return the busiest processes since the last look, none at the first one.

        ``known`` are processes of the daemon and its clients; so are the children of the former.
        """
        processes = _read_processes(self._proc)
        elapsed_s, before = now_s - self._seen_s, self._seen
        self._seen = {pid: cpu_s for pid, (_, _, cpu_s) in processes.items()}
        self._seen_s = now_s
        if not before or elapsed_s <= 0:
            return ()
        neighbours = [
            Neighbour(name=name, pid=pid, cpus=max(0.0, cpu_s - before.get(pid, 0.0)) / elapsed_s)
            for pid, (name, parent, cpu_s) in processes.items()
            if pid not in known and parent not in known
        ]
        neighbours.sort(key=lambda neighbour: -neighbour.cpus)
        return tuple(each for each in neighbours[:SHOWN_MAX] if each.cpus >= LITTLE_CPUS)


def _read_processes(proc: Path) -> dict[int, tuple[str, int, float]]:
    """Return the name, parent and CPU seconds of each process."""
    processes = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        before, _, after = read_small(f"{proc}/{entry}/stat").rpartition(b")")
        words = after.split(maxsplit=_SYSTEM_TICKS + 1)
        if len(words) <= _SYSTEM_TICKS:
            continue  # it has ended
        name = printable(before.partition(b"(")[2].decode(errors="replace"))[:_NAME_CHARS]
        ticks = int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])
        processes[int(entry)] = name, int(words[_PARENT]), ticks / _TICKS_A_S
    return processes
