"""Checks that a process runs on the CPUs, and has its memory on the node, of its placement.

The CPU mask of every thread is in /proc/<pid>/task/*/status. /proc/<pid>/numa_maps has one line per
mapping, with the count of its pages on each node. Only a process's own memory is checked:
anonymous, heap, stack and shared memory (memfd, the slots). Pages of files, mostly libraries, are
shared through the page cache and lie on the node that read them first; they are counted separately.

Source: numa(7), proc(5).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feeder.host.placement_plan import NodePlacement
from feeder.host.topology import UsableCpus, format_cpulist, parse_cpulist

_PAGE_KB = os.sysconf("SC_PAGESIZE") // 1024
_NODE_PAGES = re.compile(r"N(\d+)=(\d+)")
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "/anon_hugepage")
"""Names in numa_maps of files that are memory: memfd, POSIX, anonymous shared, System V, huge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCheck:
    """The result, in base pages. `readable` is False where numa_maps cannot be read."""

    cpus_ok: bool
    pages_on_node: int
    pages_elsewhere: int
    file_pages: int
    readable: bool

    @property
    def on_node_share(self) -> float:
        """The share of own pages on the right node, 0 to 1; 1 where there are no pages."""
        own = self.pages_on_node + self.pages_elsewhere
        return self.pages_on_node / own if own else 1.0


def check_placement(
    pid: int, placement: NodePlacement, root: Path = Path("/")
) -> PlacementCheck | None:
    """Compare a running process with its placement; None if it has ended.

    Without a memory node every page counts as on the node.
    """
    process = root / "proc" / str(pid)
    try:
        masks = [_allowed_cpus(task / "status") for task in (process / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpus_ok = not placement.pinned or all(mask <= placement.cpus for mask in masks)
    try:
        text, readable = (process / "numa_maps").read_text("utf-8", "replace"), True
    except OSError:  # a kernel without NUMA, another user's process, or one that just ended
        text, readable = "", False
    own, files = count_pages(text)
    on_node = own.get(placement.memory_node, 0) if placement.memory_node is not None else None
    total = sum(own.values())
    return PlacementCheck(
        cpus_ok=cpus_ok,
        pages_on_node=total if on_node is None else on_node,
        pages_elsewhere=0 if on_node is None else total - on_node,
        file_pages=sum(files.values()),
        readable=readable,
    )


def count_pages(numa_maps: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return the base pages per node of a process's own memory, and of files it maps."""
    own: dict[int, int] = {}
    files: dict[int, int] = {}
    for line in numa_maps.splitlines():
        words = line.split()
        name = next((word[5:] for word in words if word.startswith("file=")), None)
        counts = files if name is not None and not name.startswith(_MEMORY_FILES) else own
        size_kb = next(
            (int(word[18:]) for word in words if word.startswith("kernelpagesize_kB=")), _PAGE_KB
        )
        for word in words[2:]:
            if match := _NODE_PAGES.fullmatch(word):
                pages = int(match[2]) * size_kb // _PAGE_KB
                counts[int(match[1])] = counts.get(int(match[1]), 0) + pages
    return own, files


def merge_checks(checks: Iterable[PlacementCheck]) -> PlacementCheck:
    """Return the sum of the checks of several processes: a node process and its workers."""
    checks = list(checks)
    return PlacementCheck(
        cpus_ok=all(check.cpus_ok for check in checks),
        pages_on_node=sum(check.pages_on_node for check in checks),
        pages_elsewhere=sum(check.pages_elsewhere for check in checks),
        file_pages=sum(check.file_pages for check in checks),
        readable=all(check.readable for check in checks),
    )


def format_table(
    placements: Sequence[NodePlacement],
    usable: UsableCpus,
    checks: Mapping[int, PlacementCheck],
    warnings: Sequence[str] = (),
) -> str:
    """Return a table with one line a node; `checks` is by node id and may lack some."""
    rows: list[tuple[str, ...]] = [
        ("node", "workers", "CPUs", "memory", "CPU mask", "own pages on the node")
    ]
    for placement in placements:
        rows.append(_row(placement, checks.get(placement.node_id)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    idle = usable.affinity - frozenset().union(*(p.cpus for p in placements))
    lines.append(f"usable CPUs: {usable.reason}")
    if idle:
        lines.append(f"unused: CPUs {format_cpulist(idle)}")
    lines.extend(f"warning: {warning}" for warning in warnings)
    return "\n".join(lines)


def _row(placement: NodePlacement, check: PlacementCheck | None) -> tuple[str, ...]:
    mask, pages = "-", "-"
    if check is not None:
        mask = "as planned" if check.cpus_ok else "DIFFERS"
        own = check.pages_on_node + check.pages_elsewhere
        pages = "not readable"
        if check.readable:
            megabytes = own * _PAGE_KB / 1024
            pages = f"{check.on_node_share:.1%} of {megabytes:.0f} MiB"
    return (
        str(placement.node_id),
        str(placement.workers),
        format_cpulist(placement.cpus) if placement.pinned else "not pinned",
        f"node {placement.memory_node}" if placement.memory_node is not None else "not bound",
        mask if placement.pinned else "-",
        pages if placement.memory_node is not None else "-",
    )


def _allowed_cpus(status: Path) -> frozenset[int]:
    try:
        match = re.search(
            r"^Cpus_allowed_list:\s*(\S*)$", status.read_text("utf-8", "replace"), re.MULTILINE
        )
    except (FileNotFoundError, ProcessLookupError):
        return frozenset()  # that thread just ended
    return parse_cpulist(match[1]) if match else frozenset()
