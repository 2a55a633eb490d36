"""Which other processes use the CPUs, from two looks at /proc.

A look reads a file of each process, so it is for the moment when that is asked: 10 ms for a
thousand processes. In a container /proc shows only its own processes.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from feeder.host.process_load import read_small
from feeder.host.process_stat import ProcessStat, parse_stat
from feeder.process.path_text import printable

SHOWN_MAX: Final = 3
LITTLE_CPUS: Final = 0.05
"""A process that uses less is not named."""

_NAME_CHARS: Final = 64

Busy = tuple[str, int, float]
"""A process: its name, its number, and the CPUs that it uses."""


class NeighbourFinder:
    """Finds the processes that use most CPU time, leaving out the daemon and its clients."""

    __slots__ = ("_proc", "_seen", "_seen_s")

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: Mapping[int, float] = {}  # CPU seconds by process
        self._seen_s = 0.0

    def look(self, known: Collection[int], now_s: float) -> tuple[Busy, ...]:
        """Return name, number and CPUs of the busiest processes since the last look, none at the
        first one.

        ``known`` are processes of the daemon and its clients; so are the children of the former.
        """
        processes = _read_processes(self._proc)
        elapsed_s, before = now_s - self._seen_s, self._seen
        self._seen = {pid: stat.cpu_s for pid, (_, stat) in processes.items()}
        self._seen_s = now_s
        if not before or elapsed_s <= 0:
            return ()
        neighbours = [
            (name, pid, max(0.0, stat.cpu_s - before.get(pid, 0.0)) / elapsed_s)
            for pid, (name, stat) in processes.items()
            if pid not in known and stat.parent not in known
        ]
        neighbours.sort(key=lambda neighbour: -neighbour[2])
        return tuple(busy for busy in neighbours[:SHOWN_MAX] if busy[2] >= LITTLE_CPUS)


def _read_processes(proc: Path) -> dict[int, tuple[str, ProcessStat]]:
    """Return the name of each process, and what the kernel counts of it."""
    processes = {}
    for entry in os.listdir(proc):
        line = read_small(f"{proc}/{entry}/stat") if entry.isdigit() else b""
        stat = parse_stat(line)
        if stat is not None:  # else it has ended
            name = line.partition(b"(")[2].rpartition(b")")[0].decode(errors="replace")
            processes[int(entry)] = printable(name)[:_NAME_CHARS], stat
    return processes
