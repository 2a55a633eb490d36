"""Looks whether a process runs and keeps its memory where its placement says.

The CPU mask of every thread is in /proc/<pid>/task/*/status. Where pages lie is in
/proc/<pid>/numa_maps: one line per mapping with the count of its pages on each node. Only a
process's own memory is judged: anonymous, heap, stack and shared memory (memfd, the slots).
Pages of files, libraries above all, are shared through the page cache and lie wherever they were
read first; they are counted apart.

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
"""How numa_maps names files that are memory: memfd, POSIX, anonymous shared, System V, huge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCheck:
    """What was found, in base pages. `readable` is False where the kernel shows no numa_maps."""

    cpus_ok: bool
    pages_on_node: int
    pages_elsewhere: int
    file_pages: int
    readable: bool

    @property
    def on_node_share(self) -> float:
        """The part of the own pages that lies on the right node, 0 to 1; 1 where there is none."""
        own = self.pages_on_node + self.pages_elsewhere
        return self.pages_on_node / own if own else 1.0


def check_placement(
    pid: int, placement: NodePlacement, root: Path = Path("/")
) -> PlacementCheck | None:
    """Compare a running process with its placement; None where it ended meanwhile.

    Without a memory node every page counts as on the node: there was nothing to ask for.
    """
    process = root / "proc" / str(pid)
    try:
        masks = [_allowed_cpus(task / "status") for task in (process / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpus_ok = not placement.pinned or all(mask <= placement.cpus for mask in masks)
    try:
        text, readable = (process / "numa_maps").read_text("utf-8", "replace"), True
    except OSError:  # a kernel without NUMA, a process of somebody else, or one that just ended
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
    """Return one check over several processes: a node process and its workers."""
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
    """Return the table for people: one line a node; `checks` is by node id and may lack some."""
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
        lines.append(f"left alone: CPUs {format_cpulist(idle)}")
    lines.extend(f"warning: {warning}" for warning in warnings)
    return "\n".join(lines)


def _row(placement: NodePlacement, check: PlacementCheck | None) -> tuple[str, ...]:
    mask, pages = "-", "-"
    if check is not None:
        mask = "as planned" if check.cpus_ok else "DIFFERS"
        own = check.pages_on_node + check.pages_elsewhere
        pages = "not shown by the kernel"
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
