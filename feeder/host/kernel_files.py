"""Kernel files that the daemon depends on: absent is empty, malformed an error. Mounts and cgroups.

    <root>/proc/PROCESS/cgroup     which group the process is in, in each hierarchy
    <root>/proc/self/mountinfo     where the reader finds the hierarchies

The kernel writes the paths in both files relative to the reader's cgroup namespace. The process's
own mountinfo would not do: its mount points are those of its container.

Invariant: as in ``topology``, only the standard library is imported.
Source: proc_pid_mountinfo(5), cgroups(7).
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from feeder.errors import ResourceError
from feeder.process.regular_file import read_regular

_COUNT: Final = re.compile(r"-1|[0-9]{1,18}")  # -1 is "no limit"
_BYTES_MAX: Final = 16 << 20  # mountinfo of a host with many thousand containers
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")  # a space is written as \040


def read_bytes(path: Path | str) -> bytes:
    try:
        return read_regular(path, _BYTES_MAX)
    except (OSError, ValueError):  # a ValueError: the path holds a zero byte
        return b""


def read_text(path: Path) -> str:
    """Stripped; "" where the file is absent or not readable."""
    return read_bytes(path).decode("utf-8", "surrogateescape").strip()


def to_count(text: str, path: Path, *, least: int) -> int:
    """Parse the number in a file; ResourceError if it is not one or below ``least``."""
    if _COUNT.fullmatch(text) and int(text) >= least:
        return int(text)
    start = text if len(text) <= 40 else f"{text[:40]}…"
    raise malformed(path, f"{start!r} is not a count")


def malformed(path: Path, what: str) -> ResourceError:
    return ResourceError(f"{path} cannot be parsed: {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount. ``root`` is the folder of the file system that is seen at ``point``."""

    root: str
    point: PurePosixPath
    kind: str
    source: str
    options: tuple[str, ...]
    """Those of the file system, not of this mount: for cgroup v1 the controllers."""


def parse_mounts(text: str) -> Iterator[Mount]:
    """Yield the mounts of a table in its order, later ones over earlier; skip malformed lines."""
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        mounted, system = before.split(" "), after.split(" ")
        if len(mounted) < 5 or len(system) < 3 or not mounted[4].startswith("/"):
            continue
        folder, point, source = map(_unescape, (*mounted[3:5], system[1]))
        yield Mount(
            root=folder,
            point=PurePosixPath("/" + point.lstrip("/")),  # two slashes would be another root
            kind=system[0],
            source=source,
            options=tuple(system[2].split(",")),
        )


def _unescape(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


@functools.lru_cache(maxsize=32)  # found once, while descriptors are left
def cgroup_folders(
    root: Path, controller: str, process: str = "self"
) -> tuple[tuple[Path, bool], ...]:
    """Each folder of a controller's limits on a process, and whether it is of cgroup v2.

    They go from a hierarchy's mount down to the process's own cgroup; none where no mount shows it,
    as that of another process from within a container. ResourceError for a malformed file.
    """
    folders: dict[Path, bool] = {}
    path = root / "proc" / process / "cgroup"
    memberships = [line.split(":", 2) for line in read_text(path).splitlines()]
    for words in memberships:
        if len(words) != 3:
            raise malformed(path, f"{':'.join(words)!r} is not NUMBER:CONTROLLERS:PATH")
    for mount in parse_mounts(read_text(root / "proc/self/mountinfo")):
        unified = mount.kind == "cgroup2"
        if not unified and (mount.kind != "cgroup" or controller not in mount.options):
            continue
        top = root / mount.point.relative_to("/")
        for hierarchy, controllers, name in memberships:
            if not (hierarchy == "0" if unified else controller in controllers.split(",")):
                continue
            group = PurePosixPath(name)
            if ".." not in group.parts and group.is_relative_to(mount.root):
                below = group.relative_to(mount.root).parts
                for depth in range(len(below) + 1):
                    folders[top.joinpath(*below[:depth])] = unified
            elif process == "self":  # moved here from outside: the mount's limits are nearest
                folders[top] = unified
    return tuple(folders.items())


def cpu_quotas(root: Path, process: str = "self") -> Iterator[float]:
    """Yield every CPU quota that applies to a process, in CPUs: of its cgroups and all above."""
    for group, unified in cgroup_folders(root, "cpu", process):
        names = ["cpu.max"] if unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        paths = [group / name for name in names]
        words = " ".join(map(read_text, paths)).split()
        if len(words) == 2 and words[0] not in ("max", "-1"):
            quota_us = to_count(words[0], paths[0], least=1)
            yield quota_us / to_count(words[1], paths[-1], least=1)
