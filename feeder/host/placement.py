"""The placement of processes: CPU mask and NUMA memory policy, planned, set and checked.

Invariants: a placement has at least one worker and one CPU. Only the standard library is imported,
as memory that a process touches before its policy is set may lie on another node.

Source: set_mempolicy(2), migrate_pages(2), <linux/mempolicy.h>, numa(7), proc(5).
"""

import contextlib
import ctypes
import errno
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import NumaNode, UsableCpus, format_cpulist, parse_cpulist, read_cpulist

Pin: TypeAlias = frozenset[int] | None
"""The argument of --pin: only these CPUs, all usable ones if there are none; None: unpinned."""

_MPOL_BIND: Final = 2
_SYSCALLS: Final[Mapping[str, tuple[int, int]]] = {  # set_mempolicy, migrate_pages
    "x86_64": (238, 256),
    "aarch64": (237, 238),
}
_NODES_MAX: Final = 1024  # that a kernel can be built for

_REMEDIES: Final = {
    errno.EPERM: "in a container, add CAP_SYS_NICE (docker: --cap-add SYS_NICE) or use --pin off",
    errno.EINVAL: "the node has no memory that this process may use (see Mems_allowed in /proc)",
}
_NO_REMEDY: Final = "the node process runs on, and its memory may lie on another node"

_PAGE_KB: Final = os.sysconf("SC_PAGESIZE") // 1024
_NODE_PAGES: Final = re.compile(r" N(\d+)=(\d+)\b")
_FILE: Final = re.compile(r" file=(?!/memfd:|/dev/shm/|/dev/zero|/SYSV)")
"""A file in numa_maps that is none of memory: memfd, POSIX, anonymous shared, System V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """One node process: its CPUs, the node that must hold its memory (None: any), its workers."""

    node_id: int
    cpus: frozenset[int]
    memory_node: int | None
    workers: int
    pinned: bool = True


def parse_pin(text: str) -> Pin:
    """Parse "auto", "off" or a CPU list such as "0-3,8"; ConfigError otherwise."""
    if text in ("auto", "off"):
        return frozenset() if text == "auto" else None
    try:
        cpus = parse_cpulist(text)
    except ConfigError as error:
        raise ConfigError(f"pin is auto, off or a list of CPUs: {error}") from None
    if not cpus:
        raise ConfigError("pin is empty: write auto, off or a list of CPUs such as 0-3,8")
    return cpus


def plan_placement(
    nodes: Sequence[NumaNode], usable: UsableCpus, workers: int | None, pin: Pin
) -> tuple[NodePlacement, ...]:
    """Spread `workers` (None: one per usable CPU) over the nodes in proportion to usable CPUs.

    A node without workers gets no node process. ConfigError for a CPU outside the affinity.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}: it must be at least 1, or auto")
    if pin and (outside := pin - usable.affinity):
        raise ConfigError(
            f"pin asks for CPUs {format_cpulist(outside)}, but this process may only use "
            f"{format_cpulist(usable.affinity)}: name CPUs among these, or start it with more"
        )
    cpus, pinned = pin or usable.affinity, pin is not None
    total = workers if workers is not None else min(len(cpus), usable.count)
    shares = [(node, node.cpus & cpus) for node in nodes if node.cpus & cpus]
    if not (pinned and shares):  # no shares: these CPUs are on no node that sysfs shows
        return (
            NodePlacement(node_id=0, cpus=cpus, memory_node=None, workers=total, pinned=pinned),
        )
    counts = _apportion(total, [len(share) for _, share in shares])
    return tuple(
        NodePlacement(node_id=node.id, cpus=share, memory_node=node.memory_node, workers=count)
        for (node, share), count in zip(shares, counts, strict=True)
        if count
    )


def _apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`; the largest remainders are rounded up."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def apply_placement(placement: NodePlacement) -> str | None:
    """Pin the calling process to its CPUs and bind its memory, touched or not, to its node.

    Call this before any thread starts: threads and children inherit both. ResourceError if the CPU
    mask is refused. If the memory policy is refused (common in containers without CAP_SYS_NICE),
    the process runs on, slower, and the result is a warning to log and count.
    """
    if not placement.pinned:
        return None
    try:
        os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        raise ResourceError(
            f"the kernel refuses to pin node {placement.node_id} to CPUs "
            f"{format_cpulist(placement.cpus)} ({error.strerror}): check that they are online and "
            "allowed, or use --pin off"
        ) from None
    code = 0 if placement.memory_node is None else _bind_memory(placement.memory_node)
    if code == 0:
        return None
    return (
        f"memory of node {placement.node_id} is not bound to node {placement.memory_node}: "
        f"set_mempolicy failed: {os.strerror(code)}; {_REMEDIES.get(code, _NO_REMEDY)}"
    )


def _bind_memory(node: int) -> int:
    # Return 0 or the errno.
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        return errno.ENOSYS
    set_mempolicy, migrate_pages = numbers
    # Only nodes that exist: the kernel refuses bits past the number of nodes it was built for.
    others = read_cpulist(Path("/sys/devices/system/node/online")) - {node}
    target, sources = _node_mask({node}), _node_mask(others)
    # Both calls take the number of bits plus one: the kernel reads one bit less than given.
    bits = ctypes.c_ulong(_NODES_MAX + 1)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(ctypes.c_long(set_mempolicy), ctypes.c_long(_MPOL_BIND), target, bits) != 0:
        return ctypes.get_errno()
    # A failed move is ignored: the policy holds without it, and check_placement counts such pages.
    call(ctypes.c_long(migrate_pages), ctypes.c_long(0), bits, sources, target)
    return 0


def _node_mask(nodes: Set[int]) -> bytes:
    return sum(1 << node for node in nodes).to_bytes(_NODES_MAX // 8, sys.byteorder)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCheck:
    """How processes compare with their placement; pages are base pages of their own memory."""

    cpus_ok: bool
    pages: int
    pages_on_node: int
    readable: bool
    """False where numa_maps cannot be read."""

    @property
    def on_node_share(self) -> float:
        return self.pages_on_node / self.pages if self.pages else 1.0


def check_placement(pids: Iterable[int], placement: NodePlacement) -> PlacementCheck:
    """Compare running processes, with all their threads, with their placement."""
    node, pages = placement.memory_node, Counter[int]()
    cpus_ok = readable = True
    for pid in pids:
        # A process or thread that has just ended needs no placement.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    cpus_ok &= os.sched_getaffinity(int(thread)) <= placement.cpus
            try:
                pages += count_pages(Path(f"/proc/{pid}/numa_maps").read_text("utf-8", "replace"))
            except OSError:  # a kernel without NUMA, or another user's process
                readable = False
    return PlacementCheck(
        cpus_ok=cpus_ok or not placement.pinned,
        pages=pages.total(),
        pages_on_node=pages.total() if node is None else pages[node],
        readable=readable,
    )


def count_pages(numa_maps: str) -> Counter[int]:
    """Count the base pages per node of a process's own memory.

    Files, mostly libraries, are in the page cache, on the node that read them first.
    """
    pages = Counter[int]()
    for line in numa_maps.splitlines():
        if not _FILE.search(line):
            for node, count in _NODE_PAGES.findall(line):
                pages[int(node)] += int(count)
    return pages


def format_table(
    placements: Sequence[NodePlacement],
    usable: UsableCpus,
    checks: Mapping[int, PlacementCheck],
) -> list[str]:
    """Format a table with one line a node; `checks` is by node id and may lack some."""
    rows = [("node", "workers", "CPUs", "memory", "CPU mask", "own pages on the node")]
    for placement in placements:
        check = checks.get(placement.node_id)
        cpus, memory, mask, pages = "not pinned", "not bound", "-", "-"
        if placement.pinned:
            cpus = format_cpulist(placement.cpus)
        if placement.memory_node is not None:
            memory = f"node {placement.memory_node}"
        if check is not None and placement.pinned:
            mask = "as planned" if check.cpus_ok else "DIFFERS"
        if check is not None and placement.memory_node is not None:
            share = f"{check.on_node_share:.1%} of {check.pages * _PAGE_KB / 1024:.0f} MiB"
            pages = share if check.readable else "not readable"
        rows.append((str(placement.node_id), str(placement.workers), cpus, memory, mask, pages))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append(f"usable CPUs: {usable.reason}")
    if idle := usable.affinity.difference(*(placement.cpus for placement in placements)):
        lines.append(f"unused: CPUs {format_cpulist(idle)}")
    return lines
