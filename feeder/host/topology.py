"""The machine's NUMA nodes, from sysfs, and the number of CPUs that this process may use.

All files are read below a root: a test, or the doctor, can give the tree of any machine.

Invariants: a machine has at least one node with CPUs; at module level only the standard library is
imported, because the node process reads its placement before it may touch memory.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from feeder.errors import ConfigError
from feeder.host.kernel_files import cpu_quotas, malformed, read_text, to_count

_CPULIST_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_CPU_MAX = 65_535  # Linux is built for 8192 at most


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node: `cpus` are its online CPUs (none: memory only, such as CXL).

    `memory_node` is the node for its processes' memory: itself or, if it has no memory, the nearest
    one that has; None where sysfs shows no memory at all.
    """

    id: int
    cpus: frozenset[int]
    memory_bytes: int
    memory_node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCpus:
    """The CPUs that a process may use."""

    affinity: frozenset[int]  # its CPU mask
    quota: float | None  # of its cgroups, in CPUs
    count: int  # the lesser
    reason: str


def parse_cpulist(text: str) -> frozenset[int]:
    """Parse a list in the kernel's syntax, "0-3,8" or ""; ConfigError for anything else."""
    cpus: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        match = _CPULIST_PART.fullmatch(part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not numbers or numbers[-1] > _CPU_MAX:
            raise ConfigError(
                f"{part!r} in {text.strip()!r} is not a CPU or a range of CPUs: write a list such "
                "as 0-3,8"
            )
        cpus.update(numbers)
    return frozenset(cpus)


def format_cpulist(cpus: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def read_cpulist(path: Path) -> frozenset[int]:
    """The CPUs or nodes listed in a kernel file; none where it is absent."""
    try:
        return parse_cpulist(read_text(path))
    except ConfigError as error:
        raise malformed(path, str(error)) from None


def read_topology(
    root: Path = Path("/"), affinity: frozenset[int] | None = None
) -> tuple[NumaNode, ...]:
    """Read the machine's NUMA nodes; if sysfs has none, one node with all online CPUs.

    If it shows no CPUs either, the node has those of `affinity`, by default the caller's.
    """
    system = root / "sys/devices/system"
    online = read_cpulist(system / "cpu/online")
    folders = {int(path.name[4:]): path for path in (system / "node").glob("node[0-9]*")}
    memory = {number: _memory_bytes(path / "meminfo") for number, path in folders.items()}
    nodes: list[NumaNode] = []
    for number, path in sorted(folders.items()):
        cpus = read_cpulist(path / "cpulist")
        nodes.append(
            NumaNode(
                id=number,
                cpus=cpus & online if online else cpus,
                memory_bytes=memory[number],
                memory_node=_nearest_memory(number, path / "distance", memory),
            )
        )
    if any(node.cpus for node in nodes):
        return tuple(nodes)
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    memory_bytes = _memory_bytes(root / "proc/meminfo")
    return (NumaNode(id=0, cpus=online or affinity, memory_bytes=memory_bytes, memory_node=None),)


def usable_cpus(
    root: Path = Path("/"), affinity: frozenset[int] | None = None, process: str = "self"
) -> UsableCpus:
    """Count the CPUs that a process may keep busy: the lesser of its CPU mask and its quota.

    A quota of 2.5 CPUs counts as 2: the remainder is for the node process itself. `affinity`
    defaults to the calling process's; `process` is the folder in /proc, its number.
    """
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    quota, count = min(cpu_quotas(root, process), default=None), len(affinity)
    reason = f"affinity {count}, no cgroup quota"
    if quota is not None:
        reason = f"min(affinity {count}, cgroup quota {quota:.1f})"
        count = max(1, min(count, int(quota)))
    return UsableCpus(affinity=affinity, quota=quota, count=count, reason=f"{count} = {reason}")


def _nearest_memory(number: int, distance: Path, memory: dict[int, int]) -> int | None:
    # The file lists one figure per node, by id.
    if memory[number]:
        return number
    figures = [to_count(word, distance, least=0) for word in read_text(distance).split()]
    distances = dict(zip(sorted(memory), figures, strict=False))
    holders = [node for node, size in memory.items() if size]
    return min(holders, key=lambda node: (distances.get(node, 255), node), default=None)


def _memory_bytes(meminfo: Path) -> int:
    """The memory of a node or of the machine; 0 where the file does not have it."""
    match = re.search(r"MemTotal:\s*([0-9]{1,15}) kB", read_text(meminfo))
    return int(match[1]) * 1024 if match else 0
