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
"""

import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from feeder.host.load import parse_cpu_seconds

from ..machine import pinned_to
from .cpu_use import CpuUse

_PIECE_BYTES: Final = 128 * 1024
_RING_PIECES: Final = 256
"""32 MiB, more than a core's own caches: copying needs the memory, as decoding and packing do."""

_BURST_SHARE: Final = 0.02
"""Of the time between samples, on each core."""
_BURST_MAX_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _CoreTotals:
    """Seconds of a core since the machine's start."""

    used_s: float
    """By programs outside the soak, and stolen."""
    missed_s: float | None
    """Waited for by processes of the soak, or stolen; None if unknown."""

    def taken_since(self, before: "_CoreTotals") -> float:
        """Return what others have taken from the soak."""
        taken_s = self.used_s - before.used_s
        if self.missed_s is None or before.missed_s is None:
            return taken_s
        return min(taken_s, self.missed_s - before.missed_s)


class CoreReference:
    """Measures the cores of a soak, given by the part of it that runs there."""

    def __init__(self, cores: Mapping[str, int], *, every_s: float, root: Path = Path("/")) -> None:
        """``every_s`` is the time between two samples."""
        self._cores = dict(cores)
        self._stat = root / "proc/stat"
        self._burst_s = min(_BURST_MAX_S, _BURST_SHARE * every_s)
        self._ring = np.ones((_RING_PIECES, _PIECE_BYTES), np.uint8)
        self._copy = np.empty(_PIECE_BYTES, np.uint8)
        self._at = 0
        self._burst_cpu_s = dict.fromkeys(set(cores.values()), 0.0)
        self._before: Mapping[int, _CoreTotals] | None = None
        self._before_s = 0.0

    def sample(self, own: Mapping[int, CpuUse]) -> dict[str, float]:
        """Return MB/s of each part's core since the last call; the first call returns its speed.

        ``own`` is what all processes of the soak have used so far, by core.
        """
        now_s = time.monotonic()
        stat = self._stat.read_bytes()
        totals = {core: self._look(stat, core, own[core]) for core in self._burst_cpu_s}
        left = dict.fromkeys(totals, 1.0)
        if self._before is not None:
            elapsed_s = now_s - self._before_s
            for core, total in totals.items():
                left[core] = share_left(total.taken_since(self._before[core]), elapsed_s)
        self._before, self._before_s = totals, now_s
        speeds = {core: self._run_burst(core) for core in totals}
        return {part: speeds[core] * left[core] for part, core in self._cores.items()}

    def _look(self, stat: bytes, core: int, own: CpuUse) -> _CoreTotals:
        used_s = parse_cpu_seconds(stat, {core})[0] - own.cpu_s - self._burst_cpu_s[core]
        missed_s = None if own.waited_s is None else own.waited_s + _parse_stolen(stat, core)
        return _CoreTotals(used_s=used_s, missed_s=missed_s)

    def _run_burst(self, core: int) -> float:
        """Process the load for a moment on ``core``; return MB per second of CPU time."""
        pieces = 0
        with pinned_to(frozenset({core})):
            began_s, until_s = time.thread_time(), time.monotonic() + self._burst_s
            while not pieces or time.monotonic() < until_s:
                np.copyto(self._copy, self._ring[self._at % _RING_PIECES])
                hashlib.blake2b(self._copy.data).digest()
                self._at += 1
                pieces += 1
            taken_s = time.thread_time() - began_s
        self._burst_cpu_s[core] += taken_s
        return pieces * _PIECE_BYTES / 1e6 / max(taken_s, 1e-6)


def share_left(other_s: float, elapsed_s: float) -> float:
    """Return the share of a core's ``elapsed_s`` that others, busy for ``other_s``, have left."""
    if elapsed_s <= 0:
        return 1.0
    return 1 - min(max(other_s / elapsed_s, 0.0), 0.99)


def _parse_stolen(stat: bytes, core: int) -> float:
    """Return the seconds that the hypervisor has taken a CPU of /proc/stat away; for proc(5)."""
    match = re.search(rb"^cpu%d(?: [0-9]+){7} ([0-9]+)" % core, stat, re.MULTILINE)
    return int(match[1]) / os.sysconf("SC_CLK_TCK") if match else 0.0
