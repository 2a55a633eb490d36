"""Finds the folders of a process's cgroups, v1 and v2, and the CPU quotas in them.

    <root>/proc/PROCESS/cgroup        which group the process is in, in each hierarchy
    <root>/proc/PROCESS/mountinfo     where the hierarchies are mounted

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

    Those of a hierarchy go from its mount down to the process's own cgroup. Raises ResourceError
    where /proc/PROCESS/cgroup cannot be parsed.
    """
    folder = root / "proc" / process
    memberships = list(_memberships(folder / "cgroup"))
    for mount in parse_mounts(read_text(folder / "mountinfo")):
        if mount.kind not in ("cgroup", "cgroup2"):
            continue
        unified = mount.kind == "cgroup2"
        if not unified and controller not in mount.options:
            continue
        for hierarchy, controllers, path in memberships:
            if hierarchy == "0" if unified else controller in controllers:
                top = root / mount.point.relative_to("/")
                for group in _group_folders(top, mount.shown, path):
                    yield group, unified


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


def _group_folders(mount: Path, shown: str, path: str) -> Iterator[Path]:
    """Yield the folders of a cgroup and of all groups above it that this mount shows.

    In a container the mount may show only a part of the hierarchy, below the group ``shown``;
    groups outside it cannot be read.
    """
    yield mount
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(shown):
        return
    for name in group.relative_to(shown).parts:
        mount = mount / name
        yield mount


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
