"""Finds the folders of a process's cgroups, v1 and v2, and the CPU quotas in them.

    <root>/proc/PROCESS/cgroup     which group the process is in, in each hierarchy
    <root>/proc/self/mountinfo     where the reader finds the hierarchies

The kernel writes the paths in both files relative to the reader's cgroup namespace. The process's
own mountinfo would not do: its mount points are those of its container.

Invariant: as in ``topology``, only the standard library is imported.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from feeder.host.kernel_text import malformed, read_text, to_count
from feeder.host.mount_table import parse_mounts


def cgroup_folders(
    root: Path, controller: str, process: str = "self"
) -> Iterator[tuple[Path, bool]]:
    """Yield each folder of a controller's limits on a process, and whether it is of cgroup v2.

    Those of a hierarchy go from its mount down to the process's own cgroup. Of another process
    whose cgroup no mount shows, as from within a container, there are none. Raises ResourceError
    where /proc/PROCESS/cgroup cannot be parsed.
    """
    memberships = list(_memberships(root / "proc" / process / "cgroup"))
    for mount in parse_mounts(read_text(root / "proc/self/mountinfo")):
        if mount.kind not in ("cgroup", "cgroup2"):
            continue
        unified = mount.kind == "cgroup2"
        if not unified and controller not in mount.options:
            continue
        for hierarchy, controllers, path in memberships:
            if hierarchy == "0" if unified else controller in controllers:
                top = root / mount.point.relative_to("/")
                below = _path_below(mount.shown, path)
                if below is not None:
                    yield from ((group, unified) for group in _folders_down(top, below))
                elif process == "self":  # moved here from outside: the mount's limits are nearest
                    yield top, unified


def cpu_quotas(root: Path, process: str = "self") -> Iterator[float]:
    """Yield every CPU quota that applies to a process, in CPUs: of its cgroups and all above."""
    for group, unified in cgroup_folders(root, "cpu", process):
        yield from _v2_quota(group) if unified else _v1_quota(group)


def _memberships(path: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yield number, controllers and path of a process's cgroup in each hierarchy."""
    for line in read_text(path).splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            raise malformed(path, f"{line!r} is not NUMBER:CONTROLLERS:PATH")
        yield parts[0], parts[1].split(","), parts[2]


def _path_below(shown: str, path: str) -> PurePosixPath | None:
    """Return a cgroup's path below the group that a mount shows; None if it is outside of that.

    In a container the mount may show only a part of the hierarchy.
    """
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(shown):
        return None
    return group.relative_to(shown)


def _folders_down(top: Path, below: PurePosixPath) -> Iterator[Path]:
    yield top
    for name in below.parts:
        top = top / name
        yield top


def _v2_quota(group: Path) -> Iterator[float]:
    path = group / "cpu.max"
    words = read_text(path).split()
    if len(words) == 2 and words[0] != "max":
        yield to_count(words[0], path, least=1) / to_count(words[1], path, least=1)


def _v1_quota(group: Path) -> Iterator[float]:
    paths = [group / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    quota_us, period_us = map(read_text, paths)
    if quota_us and period_us and to_count(quota_us, paths[0], least=-1) > 0:
        yield to_count(quota_us, paths[0], least=1) / to_count(period_us, paths[1], least=1)
