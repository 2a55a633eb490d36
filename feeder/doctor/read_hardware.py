"""Reads CPUs, NUMA nodes, governors, network cards and accelerators."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from feeder.doctor.findings.facts import (
    Accelerator,
    Allowed,
    Governor,
    NetworkCard,
    Node,
    Processor,
)
from feeder.doctor.kernel_files import KernelFiles, to_cpus, to_fields
from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders
from feeder.host.topology import format_cpulist, read_topology, usable_cpus

_CPUINFO_BYTES: Final = 1 << 14  # the first CPU's part; flags take up to 3 KiB
_SYSTEM: Final = Path("sys/devices/system/cpu")
_CPU: Final = re.compile(r"cpu[0-9]{1,6}")
_POLICY: Final = re.compile(r"policy[0-9]{1,6}")
_WIDTHS: Final = {"avx512bw": "AVX-512", "avx2": "AVX2", "sse4_1": "SSE4", "sse2": "SSE2"}

_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana"}
"""PCI vendors of accelerators. Others of class "display" draw a console's screen (ASPEED, Matrox,
virtual machines)."""

_DISPLAY, _ACCELERATOR = "0x03", "0x12"
_UP: Final = ("up", "unknown")
"""Some drivers set no state, so "unknown" is to be taken as up (the kernel's operstates.rst)."""

_SHOWN_MAX: Final = 64
_MODEL_LETTERS_MAX: Final = 64


def read_processor(files: KernelFiles, *, with_cores: bool = True) -> Processor:
    """What /proc/cpuinfo shows, and ``with_cores`` the topology of the CPUs in sysfs."""
    info = files.fields("proc/cpuinfo", _CPUINFO_BYTES)
    flags = set(info.get("flags", "").split())
    online = files.cpus(_SYSTEM / "online")
    siblings = {
        files.cpus(_SYSTEM / name / "topology/thread_siblings_list")
        for name in (files.entries(_SYSTEM) if with_cores else ())
        if _CPU.fullmatch(name) and (not online or int(name[3:]) in online)
    } - {frozenset()}
    return Processor(
        model=info.get("model name") or info.get("Model") or info.get("CPU part", ""),
        vectors=next((width for flag, width in _WIDTHS.items() if flag in flags), ""),
        is_virtual="hypervisor" in flags,
        online=len(online),
        cores=len(siblings) or None,
        threads=max(map(len, siblings), default=None),
    )


def read_nodes(files: KernelFiles, allowed: Allowed, unreadable: list[str]) -> tuple[Node, ...]:
    """The NUMA nodes as the daemon places processes on them; none if no CPU is known."""
    try:
        nodes = read_topology(files.root, allowed.cpus)
    except FeederError as error:
        unreadable.append(str(error))
        return ()
    if not any(node.cpus for node in nodes):
        return ()
    return tuple(Node(**asdict(node)) for node in nodes)


def read_allowed(files: KernelFiles, unreadable: list[str]) -> Allowed:
    """What CPU mask, cpuset and quota leave to the process.

    What cannot be parsed is added to ``unreadable``. Without a CPU mask, all CPUs online count.
    """
    status = to_fields(files.own("status"))
    mask = to_cpus(status.get("Cpus_allowed_list", ""))
    if not mask and files.is_own:
        mask = frozenset(os.sched_getaffinity(0))
    cpus = mask or files.cpus(_SYSTEM / "online")
    quota, count, reason, cpuset = None, len(cpus), "", ""
    try:
        usable = usable_cpus(files.root, cpus, files.process)
        quota, reason = usable.quota, usable.reason
        count = min(usable.count, len(cpus))
        cpuset = _read_cpuset(files)
    except FeederError as error:
        unreadable.append(str(error))
    return Allowed(
        cpus=cpus,
        memory_nodes=to_cpus(status.get("Mems_allowed_list", "")),
        quota=quota,
        count=count,
        reason=reason if mask else f"{count}, the CPU mask is not known",
        cpuset=cpuset,
    )


def _read_cpuset(files: KernelFiles) -> str:
    """The innermost cgroup's cpuset in the kernel's list syntax, "" if there is none."""
    cpus: frozenset[int] = frozenset()
    for folder, unified in cgroup_folders(files.root, "cpuset", files.process):
        effective = "cpuset.cpus.effective" if unified else "cpuset.effective_cpus"
        cpus = files.cpus(folder / effective) or files.cpus(folder / "cpuset.cpus") or cpus
    return format_cpulist(cpus)


def read_governors(files: KernelFiles, usable: frozenset[int]) -> tuple[Governor, ...]:
    """The cpufreq governors of usable CPUs; one where only the range of clocks differs."""
    governors: dict[tuple[str, str, str], Governor] = {}
    for folder, cpus in _policies(files):
        name, driver, preference = (
            files.text(folder / file, 64)
            for file in ("scaling_governor", "scaling_driver", "energy_performance_preference")
        )
        count = len(cpus & usable) if usable else len(cpus)
        if name and count:
            least = files.number(folder / "cpuinfo_min_freq")
            most = files.number(folder / "cpuinfo_max_freq")
            other = governors.get((name, driver, preference))
            if other is not None:
                count += other.cpus
                least = min((khz for khz in (least, other.least_khz) if khz), default=None)
                most = max((khz for khz in (most, other.most_khz) if khz), default=None)
            governors[name, driver, preference] = Governor(
                name=name,
                driver=driver,
                cpus=count,
                least_khz=least,
                most_khz=most,
                preference=preference,
            )
    return tuple(sorted(governors.values(), key=lambda governor: -governor.cpus))


def _policies(files: KernelFiles) -> Iterator[tuple[Path, frozenset[int]]]:
    policies = [name for name in files.entries(_SYSTEM / "cpufreq") if _POLICY.fullmatch(name)]
    for name in policies:
        folder = _SYSTEM / "cpufreq" / name
        yield folder, to_cpus(files.text(folder / "related_cpus").replace(" ", ","))
    for name in () if policies else files.entries(_SYSTEM):
        if _CPU.fullmatch(name):
            yield _SYSTEM / name / "cpufreq", frozenset({int(name[3:])})


def read_cards(files: KernelFiles) -> tuple[NetworkCard, ...]:
    """The interfaces with a device of their own: no bridges, bonds or loopback."""
    cards: list[NetworkCard] = []
    for name in files.entries("sys/class/net")[:_SHOWN_MAX]:
        folder = f"sys/class/net/{name}"
        if files.entries(f"{folder}/device"):
            speed = files.number(f"{folder}/speed") or 0
            # A virtio device has no node of its own; its PCI function may.
            node = _read_node(files, f"{folder}/device", f"{folder}/device/..")
            is_up = files.text(f"{folder}/operstate", 64) in _UP
            speed_mbit = speed if speed > 0 else None
            cards.append(NetworkCard(name=name, is_up=is_up, speed_mbit=speed_mbit, node=node))
    return tuple(cards)


def read_accelerators(files: KernelFiles) -> tuple[Accelerator, ...]:
    accelerators: list[Accelerator] = []
    for address in files.entries("sys/bus/pci/devices"):
        folder = f"sys/bus/pci/devices/{address}"
        kind, vendor, device = (
            files.text(f"{folder}/{name}", 64) for name in ("class", "vendor", "device")
        )
        is_accelerator = kind.startswith(_ACCELERATOR)
        if not (is_accelerator or (kind.startswith(_DISPLAY) and vendor in _VENDORS)):
            continue
        if not (vendor.isalnum() and device.isalnum()):
            continue
        # The name that NVIDIA's driver gives a GPU, such as "NVIDIA A100-SXM4-40GB".
        information = files.fields(f"proc/driver/nvidia/gpus/{address}/information")
        name = information.get("Model", "")[:_MODEL_LETTERS_MAX]
        name = name or f"{_VENDORS.get(vendor, vendor)} {device}"
        node = _read_node(files, folder)
        accelerators.append(Accelerator(address=address, name=name, node=node))
    return tuple(accelerators[:_SHOWN_MAX])


def _read_node(files: KernelFiles, *devices: str) -> int | None:
    nodes = [files.number(f"{device}/numa_node") for device in devices]
    node = next((number for number in nodes if number is not None), -1)
    return node if node >= 0 else None
