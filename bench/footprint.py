"""Memory, descriptors and shared memory of the daemon's processes.

A process's own memory is its proportional share (PSS) of everything but shared memory, so code that
several processes map is counted once in total. Slots are counted once however many processes map
them: by the pages of the anonymous files (memfd) behind the descriptors.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

_ANONYMOUS: Final = "/memfd:"
_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's are


@dataclass(frozen=True, slots=True)
class SharedFile:
    """An anonymous file, which several processes may hold open."""

    purpose: str
    """Its memfd name without "feeder-"."""
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFootprint:
    """Memory and descriptors of one process."""

    rss_bytes: int
    pss_bytes: int
    own_bytes: int
    """PSS without shared memory."""
    fds: int
    shared_files: Mapping[SharedFile, int]
    """Bytes in memory of each anonymous file that it has open."""

    @classmethod
    def of_process(cls, pid: int) -> Self:
        """Read it from /proc; OSError when the process is gone."""
        fields = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (
                line.partition(":")
                for line in Path(f"/proc/{pid}/smaps_rollup")
                .read_text("utf-8", "replace")
                .splitlines()[1:]
            )
        }
        folder = f"/proc/{pid}/fd"
        names = os.listdir(folder)
        files: dict[SharedFile, int] = {}
        for name in names:
            try:
                target = os.readlink(f"{folder}/{name}")
                if target.startswith(_ANONYMOUS):
                    status = os.stat(f"{folder}/{name}")
                    purpose = target.removeprefix(_ANONYMOUS).split(" ")[0].removeprefix("feeder-")
                    file = SharedFile(purpose, status.st_dev, status.st_ino)
                    files[file] = status.st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # closed meanwhile
        return cls(
            rss_bytes=fields["Rss"],
            pss_bytes=fields["Pss"],
            own_bytes=fields["Pss"] - fields["Pss_Shmem"],
            fds=len(names),
            shared_files=files,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The footprints of the daemon's processes by role: supervisor, node, worker-1, worker-2 …"""

    processes: Mapping[str, ProcessFootprint]

    @classmethod
    def of_processes(cls, processes: Sequence[psutil.Process]) -> Self:
        """Read the footprints of the supervisor, which comes first, and its descendants.

        OSError or psutil.Error when one is gone.
        """
        roles: dict[str, ProcessFootprint] = {}
        for process in processes:
            roles[_role(process, roles)] = ProcessFootprint.of_process(process.pid)
        return cls(processes=roles)

    @property
    def shared_bytes(self) -> Mapping[str, int]:
        """Total shared memory by purpose ("slots" is always there), each file counted once."""
        files: dict[SharedFile, int] = {}
        for each in self.processes.values():
            files |= each.shared_files
        by_purpose = {"slots": 0}
        for file, size_bytes in files.items():
            by_purpose[file.purpose] = by_purpose.get(file.purpose, 0) + size_bytes
        return by_purpose


def mapped_slot_memories(pid: int) -> int:
    """Return how many sessions' slots a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    return len({line.split()[4] for line in lines if f"{_ANONYMOUS}feeder-slots" in line})


def _role(process: psutil.Process, before: Mapping[str, ProcessFootprint]) -> str:
    if not before:
        return "supervisor"
    kind = "worker" if "feeder.worker" in process.cmdline() else "node"
    number = 1 + sum(role.startswith(kind) for role in before)
    return f"{kind}-{number}"
