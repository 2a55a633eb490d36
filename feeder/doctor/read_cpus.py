"""Reads CPUs, NUMA nodes, governors, and which of them the process may use."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from feeder.doctor.findings.facts import Allowed, Governor, Node, Processor
from feeder.doctor.kernel_files import KernelFiles, to_cpus, to_fields
from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders
from feeder.host.topology import UsableCpus, format_cpulist, read_topology, usable_cpus

_CPUINFO_BYTES = 1 << 14  # the first CPU's part; flags take up to 3 KiB
_CPU = re.compile(r"cpu[0-9]{1,6}")
_POLICY = re.compile(r"policy[0-9]{1,6}")


def read_processor(files: KernelFiles, *, with_cores: bool = True) -> Processor:
    """Return what /proc/cpuinfo shows, and ``with_cores`` the topology of the CPUs in sysfs."""
    info = files.fields("proc/cpuinfo", _CPUINFO_BYTES)
    flags = set(info.get("flags", "").split())
    widths = {"avx512bw": "AVX-512", "avx2": "AVX2", "sse4_1": "SSE4", "sse2": "SSE2"}
    online = files.cpus("sys/devices/system/cpu/online")
    cores, threads = _read_cores(files, online) if with_cores else (None, None)
    return Processor(
        model=info.get("model name") or info.get("Model") or info.get("CPU part", ""),
        vectors=next((width for flag, width in widths.items() if flag in flags), ""),
        is_virtual="hypervisor" in flags,
        online=len(online),
        cores=cores,
        threads=threads,
    )


def _read_cores(files: KernelFiles, online: frozenset[int]) -> tuple[int | None, int | None]:
    """Return the number of cores with a CPU online, and the most threads that a core has."""
    siblings: set[frozenset[int]] = set()
    for name in files.entries("sys/devices/system/cpu"):
        if _CPU.fullmatch(name) and (not online or int(name[3:]) in online):
            folder = f"sys/devices/system/cpu/{name}/topology"
            found = files.cpus(f"{folder}/thread_siblings_list")
            if found:
                siblings.add(found)
    if not siblings:
        return None, None
    return len(siblings), max(len(each) for each in siblings)


def read_nodes(files: KernelFiles, allowed: Allowed, unreadable: list[str]) -> tuple[Node, ...]:
    """Return the NUMA nodes as the daemon places processes on them; none if no CPU is known."""
    try:
        nodes = read_topology(files.root, allowed.cpus)
    except FeederError as error:
        unreadable.append(str(error))
        return ()
    if not any(node.cpus for node in nodes):
        return ()
    return tuple(
        Node(
            id=node.id,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            memory_node=node.memory_node,
        )
        for node in nodes
    )


def read_allowed(files: KernelFiles, unreadable: list[str]) -> Allowed:
    """Return what CPU mask, cpuset and quota leave to the process.

    Where the mask is not known it is taken to have all online CPUs.
    """
    status = to_fields(files.own("status"))
    mask = to_cpus(status.get("Cpus_allowed_list", ""))
    if not mask and files.is_own:
        mask = frozenset(os.sched_getaffinity(0))
    cpus = mask or files.cpus("sys/devices/system/cpu/online")
    memory_nodes = to_cpus(status.get("Mems_allowed_list", ""))
    usable: UsableCpus | None = None
    cpuset = ""
    try:
        usable = usable_cpus(files.root, cpus, files.process)
        cpuset = _read_cpuset(files)
    except FeederError as error:
        unreadable.append(str(error))
    count = min(usable.count if usable else len(cpus), len(cpus))
    reason = usable.reason if usable else ""
    return Allowed(
        cpus=cpus,
        memory_nodes=memory_nodes,
        quota=usable.quota if usable else None,
        count=count,
        reason=reason if mask else f"{count}, the CPU mask is not known",
        cpuset=cpuset,
    )


def _read_cpuset(files: KernelFiles) -> str:
    """Return the innermost cgroup's cpuset in the kernel's list syntax, "" if there is none."""
    found: frozenset[int] = frozenset()
    for folder, unified in cgroup_folders(files.root, "cpuset", files.process):
        names = ("cpuset.cpus.effective", "cpuset.cpus")
        for name in names if unified else ("cpuset.effective_cpus", "cpuset.cpus"):
            cpus = files.cpus(folder / name)
            if cpus:
                found = cpus
                break
    return format_cpulist(found)


def read_governors(files: KernelFiles, usable: frozenset[int]) -> tuple[Governor, ...]:
    """Return the cpufreq governors of usable CPUs; one where only the range of clocks differs."""
    found: dict[tuple[str, str, str], Governor] = {}
    for folder, cpus in _policies(files):
        governed = len(cpus & usable) if usable else len(cpus)
        name = files.text(folder / "scaling_governor", 64)
        if name and governed:
            one = Governor(
                name=name,
                driver=files.text(folder / "scaling_driver", 64),
                cpus=governed,
                least_khz=files.number(folder / "cpuinfo_min_freq"),
                most_khz=files.number(folder / "cpuinfo_max_freq"),
                preference=files.text(folder / "energy_performance_preference", 64),
            )
            key = (one.name, one.driver, one.preference)
            found[key] = _merge(found[key], one) if key in found else one
    return tuple(sorted(found.values(), key=lambda each: -each.cpus))


def _merge(one: Governor, other: Governor) -> Governor:
    leasts = [khz for khz in (one.least_khz, other.least_khz) if khz is not None]
    mosts = [khz for khz in (one.most_khz, other.most_khz) if khz is not None]
    return replace(
        one,
        cpus=one.cpus + other.cpus,
        least_khz=min(leasts, default=None),
        most_khz=max(mosts, default=None),
    )


def _policies(files: KernelFiles) -> Iterator[tuple[Path, frozenset[int]]]:
    """Yield the folder of each cpufreq policy and its CPUs."""
    system = Path("sys/devices/system/cpu")
    policies = [name for name in files.entries(system / "cpufreq") if _POLICY.fullmatch(name)]
    for name in policies:
        folder = system / "cpufreq" / name
        yield folder, to_cpus(files.text(folder / "related_cpus").replace(" ", ","))
    if not policies:
        for name in files.entries(system):
            if _CPU.fullmatch(name):
                yield system / name / "cpufreq", frozenset({int(name[3:])})
