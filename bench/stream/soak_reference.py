"""The reference of a soak's throughput: what the same cores could do in the same seconds.

Throughput depends on the machine, which others use too: a neighbour takes time of the core, or of
the memory and caches that all cores share. So with every sample, each core of the soak processes a
fixed load for a moment: it copies and hashes bytes. Its speed is measured in CPU time, which does
not depend on what else runs on that core, and multiplied by the share of the core's time that
programs outside the soak have not taken from it since the last sample. They have taken what they
used (from /proc/stat, time stolen by the hypervisor included), but no more than the time that
processes of the soak waited for the core: what others use while these are idle is no loss. So
neither a busy daemon nor one that is slow can lower the product. Where the kernel does not count
waits, all that others use counts as taken; a core without a line in /proc/stat, nothing.

Source: proc(5), Documentation/scheduler/sched-stats.rst (/proc/PID/task/TID/schedstat).
"""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psutil

from feeder.host.load import parse_cpu_seconds

from ..machine import pinned_to

_PIECE_BYTES: Final = 128 * 1024
_RING_PIECES: Final = 256
"""32 MiB, more than a core's own caches: copying needs the memory, as decoding and packing do."""

_BURST_SHARE: Final = 0.02
"""Of the time between samples, on each core."""
_BURST_MAX_S: Final = 0.1


class CpuUse(NamedTuple):
    """What some processes have used of their core since their start."""

    cpu_s: float
    waited_s: float | None
    """Time in which threads could run and another one ran on the core; None if unknown."""

    def plus(self, other: "CpuUse") -> "CpuUse":
        """Return the totals of both."""
        waited_s = None
        if self.waited_s is not None and other.waited_s is not None:
            waited_s = self.waited_s + other.waited_s
        return CpuUse(self.cpu_s + other.cpu_s, waited_s)


def cpu_use(pids: Iterable[int], *, root: Path = Path("/proc")) -> CpuUse:
    """Return the totals of those processes that run."""
    # Without CONFIG_SCHED_INFO all is 0 or missing.
    total = CpuUse(0.0, 0.0 if _read_ns("self", root)[0] > 0 else None)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total = total.plus(CpuUse(times.user + times.system, _read_ns(pid, root)[1] / 1e9))
    return total


def _read_ns(process: int | str, root: Path) -> tuple[int, int]:
    """Return how long the threads of a process have run and waited; 0 of one that has ended."""
    running, waiting = 0, 0
    for path in (root / str(process) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = path.read_text().split()
            running += int(fields[0])
            waiting += int(fields[1])
    return running, waiting


class CoreReference:
    """Measures the cores of a soak, given by the part of it that runs there."""

    def __init__(self, cores: Mapping[str, int], *, every_s: float, root: Path = Path("/")) -> None:
        """``every_s`` is the time between two samples."""
        self._cores = cores
        self._stat = root / "proc/stat"
        self._burst_s = min(_BURST_MAX_S, _BURST_SHARE * every_s)
        self._ring = np.ones((_RING_PIECES, _PIECE_BYTES), np.uint8)
        self._copy = np.empty(_PIECE_BYTES, np.uint8)
        self._at = 0
        self._burst_cpu_s = dict.fromkeys(cores.values(), 0.0)
        self._before: dict[int, CpuUse] = {}
        self._before_s = 0.0

    def sample(self, own: Mapping[int, CpuUse]) -> dict[str, float]:
        """Return MB/s of each part's core since the last call; the first call returns its speed.

        ``own`` is what all processes of the soak have used so far, by core.
        """
        now_s = time.monotonic()
        stat = self._stat.read_bytes()
        # Of each core since the machine's start: what programs outside the soak have used, with
        # what was stolen, and what processes of the soak have missed by waiting or by theft.
        totals: dict[int, CpuUse] = {}
        for core, burst_cpu_s in self._burst_cpu_s.items():
            used_s = parse_cpu_seconds(stat, {core})[0] - own[core].cpu_s - burst_cpu_s
            stolen = CpuUse(0.0, _parse_stolen(stat, core))
            totals[core] = CpuUse(used_s, own[core].plus(stolen).waited_s)
        left = {
            core: share_left(
                _taken_between(self._before.get(core, total), total), now_s - self._before_s
            )
            for core, total in totals.items()
        }
        self._before, self._before_s = totals, now_s
        speeds = {core: self._run_burst(core) for core in totals}
        return {part: speeds[core] * left[core] for part, core in self._cores.items()}

    def _run_burst(self, core: int) -> float:
        """Process the load for a moment on ``core``; return MB per second of CPU time."""
        pieces = 0
        with pinned_to(core):
            began_s, until_s = time.thread_time(), time.monotonic() + self._burst_s
            while not pieces or time.monotonic() < until_s:
                np.copyto(self._copy, self._ring[self._at % _RING_PIECES])
                hashlib.blake2b(self._copy.data).digest()
                self._at += 1
                pieces += 1
            taken_s = time.thread_time() - began_s
        self._burst_cpu_s[core] += taken_s
        return pieces * _PIECE_BYTES / 1e6 / max(taken_s, 1e-6)


def _taken_between(before: CpuUse, now: CpuUse) -> float:
    """Return the seconds that others have taken from the soak, given the totals of its core."""
    taken_s = now.cpu_s - before.cpu_s
    if now.waited_s is None or before.waited_s is None:
        return taken_s
    return min(taken_s, now.waited_s - before.waited_s)


def share_left(other_s: float, elapsed_s: float) -> float:
    """Return the share of a core's ``elapsed_s`` that others, busy for ``other_s``, have left."""
    if elapsed_s <= 0:
        return 1.0
    return 1 - min(max(other_s / elapsed_s, 0.0), 0.99)


def _parse_stolen(stat: bytes, core: int) -> float:
    """Return the seconds that the hypervisor has taken a CPU of /proc/stat away; for proc(5)."""
    match = re.search(rb"^cpu%d(?: [0-9]+){7} ([0-9]+)" % core, stat, re.MULTILINE)
    return int(match[1]) / os.sysconf("SC_CLK_TCK") if match else 0.0
