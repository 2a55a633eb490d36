"""Packs a source while its processes are killed, and measures how much memory they take."""

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.sources import feeder_command

_WAIT_S = 0.02
_STALL_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledPacking:
    """What came of it."""

    kills: int
    peak_bytes: int
    """Anonymous memory of all processes of a packing together, the most at any look."""


def pack_with_kills(
    source: str | Path, destination: Path, *options: str, kills: int, seed: int = 0
) -> KilledPacking:
    """Run ``feeder pack`` to the end, and kill it ``kills`` times on the way.

    A kill comes when the work folder has changed a drawn number of times since the run's start, so
    that each run gets further than the one before it. Afterwards a run completes the dataset. Two
    processes may finish several shards between two looks: give six for each kill.
    """
    chosen = random.Random(seed)
    peak = done = 0
    while True:
        changes = chosen.randint(1, 2)
        with subprocess.Popen(
            feeder_command("pack", source, destination, *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as process:
            used = _watch(process, destination / ".packing", changes if done < kills else None)
            assert process.stderr is not None
            errors = process.stderr.read().decode()
        peak = max(peak, used)
        if process.returncode == 0:
            return KilledPacking(kills=done, peak_bytes=peak)
        assert process.returncode == -signal.SIGKILL, errors
        done += 1


def _watch(process: "subprocess.Popen[bytes]", folder: Path, changes: int | None) -> int:
    """Watch until the process has ended, or kill it after ``changes``; return its peak memory."""
    peak = 0
    before = _files(folder)
    began_s = time.monotonic()
    while process.poll() is None:
        peak = max(peak, _anonymous_bytes(process.pid))
        if changes is not None and len(_files(folder) ^ before) >= changes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            break
        assert time.monotonic() - began_s < _STALL_S, "the packing makes no progress"
        time.sleep(_WAIT_S)
    return peak


def _files(folder: Path) -> set[str]:
    """Return the complete files of the work folder."""
    try:
        return {name for name in os.listdir(folder) if not name.endswith(".tmp")}
    except FileNotFoundError:
        return set()


def _anonymous_bytes(pid: int) -> int:
    """Return the memory of a process and its children that is no page cache."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for each in (parent, *parent.children(recursive=True)):
            memory = each.memory_info()
            total += memory.rss - memory.shared
    except psutil.Error:  # one has just ended
        return total
    return total
