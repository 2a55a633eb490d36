"""The placement of processes: CPU mask and NUMA memory policy, set together.

    plan_placement    topology, usable CPUs, workers and --pin → one NodePlacement per node process
    apply_placement   a node process's first act; its workers inherit mask and policy
    check_placement   compares a running process, by /proc, with its placement
    format_table      placements and checks as text

Invariant: imports the standard library only. Memory that a process touches before its policy is set
lies on whichever node it started on, so nothing heavy may be imported before.

Source of the system calls: set_mempolicy(2), migrate_pages(2), <linux/mempolicy.h>.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from feeder.errors import ResourceError
from feeder.host.placement_check import (
    PlacementCheck,
    check_placement,
    count_pages,
    format_table,
    merge_checks,
)
from feeder.host.placement_plan import NodePlacement, Pin, PinMode, parse_pin, plan_placement
from feeder.host.topology import format_cpulist, read_cpulist

__all__ = [
    "AppliedPlacement",
    "NodePlacement",
    "Pin",
    "PinMode",
    "PlacementCheck",
    "apply_placement",
    "check_placement",
    "count_pages",
    "format_table",
    "merge_checks",
    "parse_pin",
    "plan_placement",
    "restore_affinity",
]

_MPOL_BIND = 2
_SYSCALLS: Mapping[str, tuple[int, int]] = {  # set_mempolicy, migrate_pages
    "x86_64": (238, 256),
    "aarch64": (237, 238),
}
_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlacement:
    """What the kernel granted. `warning` is a log line if memory could not be bound."""

    memory_bound: bool
    warning: str | None


def apply_placement(placement: NodePlacement) -> AppliedPlacement:
    """Pin the calling process to its CPUs and bind the memory it touches from now on to its node.

    Memory that it has touched already (the interpreter's) is moved. Call this before any heavy
    import and before any thread starts: threads and children inherit both. Raises ResourceError if
    the CPU mask is refused. If the memory policy is refused (common in containers without
    CAP_SYS_NICE), the process runs on, slower, and the result has a warning to log and count.
    """
    if not placement.pinned:
        return AppliedPlacement(memory_bound=False, warning=None)
    try:
        os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        raise ResourceError(
            f"the kernel refuses to pin node {placement.node_id} to CPUs "
            f"{format_cpulist(placement.cpus)} ({error.strerror}): check that they are online and "
            "allowed, or use --pin off"
        ) from None
    if placement.memory_node is None:
        return AppliedPlacement(memory_bound=False, warning=None)
    code = _bind_memory(placement.memory_node)
    if code == 0:
        return AppliedPlacement(memory_bound=True, warning=None)
    return AppliedPlacement(
        memory_bound=False,
        warning=(
            f"memory of node {placement.node_id} is not bound to node {placement.memory_node}: "
            f"set_mempolicy failed: {os.strerror(code)}; {_remedy(code)}"
        ),
    )


def restore_affinity(placement: NodePlacement) -> str | None:
    """Restore the CPU mask if a library narrowed it during import, as some OpenMP builds do.

    Call it after the imports. Returns the line to log and count, or None if nothing changed.
    """
    if not placement.pinned:
        return None
    now = os.sched_getaffinity(0)
    if now == placement.cpus:
        return None
    os.sched_setaffinity(0, placement.cpus)
    return (
        f"a library narrowed the CPU mask of node {placement.node_id} from "
        f"{format_cpulist(placement.cpus)} to {format_cpulist(now)} when it was imported; restored"
    )


def _bind_memory(node: int) -> int:
    """Set MPOL_BIND to one node and move pages from other nodes; return 0 or the errno."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        return errno.ENOSYS
    set_mempolicy, migrate_pages = numbers
    # Only nodes that exist: the kernel refuses bits past the number of nodes it was built for.
    others = read_cpulist(Path("/sys/devices/system/node/online")) - {node}
    words = max(node, *others, 0) // _LONG_BITS + 1
    target, sources = _node_mask({node}, words), _node_mask(others, words)
    # Both calls take the number of bits plus one: the kernel reads one bit less than given.
    bits = ctypes.c_ulong(words * _LONG_BITS + 1)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(ctypes.c_long(set_mempolicy), ctypes.c_long(_MPOL_BIND), target, bits) != 0:
        return ctypes.get_errno()
    # A failed move is ignored: the policy holds without it, and check_placement counts such pages.
    call(ctypes.c_long(migrate_pages), ctypes.c_long(0), bits, sources, target)
    return 0


def _node_mask(nodes: Set[int], words: int) -> "ctypes.Array[ctypes.c_ulong]":
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // _LONG_BITS] |= 1 << node % _LONG_BITS
    return mask


def _remedy(code: int) -> str:
    if code == errno.EPERM:
        return "in a container, add CAP_SYS_NICE (docker: --cap-add SYS_NICE) or use --pin off"
    if code == errno.EINVAL:
        return "the node has no memory that this process may use (see Mems_allowed in /proc)"
    return "the node process runs on, and its memory may lie on another node"
