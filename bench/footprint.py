"""Memory, descriptors and shared memory of the daemon's processes.

A process's own memory is its proportional share (PSS) of everything but shared memory, so code that
several processes map is counted once in total. Slots are counted once however many processes map
them: by the pages of the anonymous files (memfd) behind the descriptors.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

_ANONYMOUS: Final = "/memfd:"
_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's are


def measure_footprints(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """Return memory in MiB and descriptors by what and role, such as ``memory/worker-1``.

    ``processes`` are a supervisor and its descendants; ``shared-memory/PURPOSE`` is of all of them,
    each file counted once, and that of slots is always there. OSError or psutil.Error when a
    process is gone.
    """
    values: dict[str, float] = {}
    files: dict[tuple[str, int, int], int] = {}
    counts = {"worker": 0, "node": 0}
    for process in processes:
        role, pid = "supervisor", process.pid
        if process is not processes[0]:
            kind = "worker" if "feeder.worker" in process.cmdline() else "node"
            counts[kind] += 1
            role = f"{kind}-{counts[kind]}"
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8", "replace").splitlines()[1:]
        kib = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
        values[f"memory/{role}"] = (kib["Pss"] - kib["Pss_Shmem"]) / 1024
        values[f"pss/{role}"] = kib["Pss"] / 1024
        values[f"rss/{role}"] = kib["Rss"] / 1024
        values[f"fds/{role}"] = len(os.listdir(f"/proc/{pid}/fd"))
        files |= _shared_files(pid)
    shared = {"shared-memory/slots": 0.0}
    for (purpose, _, _), size_bytes in files.items():
        name = f"shared-memory/{purpose}"
        shared[name] = shared.get(name, 0.0) + size_bytes / 2**20
    return shared | values


def _shared_files(pid: int) -> dict[tuple[str, int, int], int]:
    """Return the bytes in memory of each memfd, by its name without "feeder-", device and inode."""
    files: dict[tuple[str, int, int], int] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(link)
            if target.startswith(_ANONYMOUS):
                status = link.stat()
                purpose = target.removeprefix(_ANONYMOUS).split(" ")[0].removeprefix("feeder-")
                files[purpose, status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return files


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; psutil.NoSuchProcess when it is gone."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def busy_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes have used so far, without those that are gone."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total_s += times.user + times.system
    return total_s


def status_bytes(pid: int, field: str) -> int:
    """Return a size in /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) * 1024


def mapped_slot_memories(pid: int) -> int:
    """Return how many sessions' slots a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    return len({line.split()[4] for line in lines if f"{_ANONYMOUS}feeder-slots" in line})
