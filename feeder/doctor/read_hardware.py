"""Reads CPUs, NUMA nodes, governors, network cards and accelerators."""

from typing import Final

from feeder.doctor.facts import Accelerator, Allowed, Governor, NetworkCard, Processor
from feeder.doctor.kernel_files import KernelFiles, to_cpus, to_fields
from feeder.errors import FeederError
from feeder.host.topology import (
    NumaNode,
    UsableCpus,
    format_cpulist,
    read_topology,
    usable_cpus,
)

_CPUINFO_BYTES: Final = 1 << 14  # the first CPU's part; flags take up to 3 KiB
_SYSTEM: Final = "sys/devices/system/cpu"
_WIDTHS: Final = {"avx512bw": "AVX-512", "avx2": "AVX2", "sse4_1": "SSE4", "sse2": "SSE2"}

_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana"}
"""PCI vendors of accelerators. Others of class "display" draw a console's screen (ASPEED, Matrox,
virtual machines)."""

_DISPLAY, _ACCELERATOR = "0x03", "0x12"
_UP: Final = ("up", "unknown")
"""Some drivers set no state, so "unknown" is to be taken as up (the kernel's operstates.rst)."""


def read_processor(files: KernelFiles, *, with_cores: bool = True) -> Processor:
    """What /proc/cpuinfo shows, and ``with_cores`` the topology of the CPUs in sysfs."""
    info = to_fields(files.text("proc/cpuinfo", _CPUINFO_BYTES))
    flags = set(info.get("flags", "").split())
    online = files.cpus(f"{_SYSTEM}/online")
    siblings: set[frozenset[int]] = set()
    for _, folder in files.numbered(_SYSTEM, "cpu") if with_cores else ():
        siblings.add(files.cpus(f"{folder}/topology/thread_siblings_list"))
    siblings.discard(frozenset())  # of a CPU that is offline
    return Processor(
        model=info.get("model name") or info.get("Model") or info.get("CPU part", ""),
        vectors=next((width for flag, width in _WIDTHS.items() if flag in flags), ""),
        is_virtual="hypervisor" in flags,
        online=len(online),
        cores=len(siblings) or None,
        threads=max(map(len, siblings), default=None),
    )


def read_nodes(files: KernelFiles, allowed: Allowed) -> tuple[NumaNode, ...]:
    """The NUMA nodes as the daemon places processes on them; none if no CPU is known."""
    try:
        nodes = read_topology(files.root, allowed.cpus)
    except FeederError as error:
        files.unreadable.append(str(error))
        return ()
    return nodes if any(node.cpus for node in nodes) else ()


def read_allowed(files: KernelFiles) -> Allowed:
    """What CPU mask, cpuset and quota leave to the process; without a mask, all CPUs online."""
    status = to_fields(files.own("status"))
    mask = to_cpus(status.get("Cpus_allowed_list", ""))
    cpus = mask or files.cpus(f"{_SYSTEM}/online")
    usable = UsableCpus(affinity=cpus, quota=None, count=len(cpus), reason="")
    try:
        usable = usable_cpus(files.root, cpus, files.process)
    except FeederError as error:
        files.unreadable.append(str(error))
    cpuset: frozenset[int] = frozenset()
    for folder, is_unified in files.cgroups("cpuset"):
        effective = "cpuset.cpus.effective" if is_unified else "cpuset.effective_cpus"
        # The innermost cgroup that has one counts.
        cpuset = files.cpus(folder / effective) or files.cpus(folder / "cpuset.cpus") or cpuset
    count = min(usable.count, len(cpus))
    return Allowed(
        cpus=cpus,
        memory_nodes=to_cpus(status.get("Mems_allowed_list", "")),
        quota=usable.quota,
        count=count,
        reason=usable.reason if mask else f"{count}, the CPU mask is not known",
        cpuset=format_cpulist(cpuset),
    )


def read_governors(files: KernelFiles, usable: frozenset[int]) -> tuple[Governor, ...]:
    """The cpufreq governors of usable CPUs; one where only the range of clocks differs."""
    folders = [folder for _, folder in files.numbered(f"{_SYSTEM}/cpufreq", "policy")]
    governed = {
        folder: to_cpus(files.text(f"{folder}/related_cpus").replace(" ", ","))
        for folder in folders
    }
    if not governed:  # Linux before 4.3
        cpus = files.numbered(_SYSTEM, "cpu")
        governed = {f"{folder}/cpufreq": frozenset({number}) for number, folder in cpus}
    governors: dict[tuple[str, str, str], Governor] = {}
    for folder, covered in governed.items():
        name = files.text(f"{folder}/scaling_governor")
        driver = files.text(f"{folder}/scaling_driver")
        preference = files.text(f"{folder}/energy_performance_preference")
        count = len(covered & usable if usable else covered)
        if not (name and count):
            continue
        least = files.number(f"{folder}/cpuinfo_min_freq")
        most = files.number(f"{folder}/cpuinfo_max_freq")
        other = governors.get((name, driver, preference))
        if other is not None:
            count += other.cpus
            least = min(filter(None, (least, other.least_khz)), default=None)
            most = max(filter(None, (most, other.most_khz)), default=None)
        governors[name, driver, preference] = Governor(
            name=name,
            driver=driver,
            cpus=count,
            least_khz=least,
            most_khz=most,
            preference=preference,
        )
    return tuple(sorted(governors.values(), key=lambda governor: -governor.cpus))


def read_cards(files: KernelFiles) -> tuple[NetworkCard, ...]:
    """The interfaces with a device of their own: no bridges, bonds or loopback."""
    cards: list[NetworkCard] = []
    for name in files.entries("sys/class/net"):
        folder = f"sys/class/net/{name}"
        if not files.entries(f"{folder}/device"):
            continue
        node = files.number(f"{folder}/device/numa_node")
        if node is None:  # a virtio device has none of its own; its PCI function may
            node = files.number(f"{folder}/device/../numa_node")
        is_up = files.text(f"{folder}/operstate") in _UP
        speed_mbit = files.number(f"{folder}/speed") or None
        cards.append(NetworkCard(name=name, is_up=is_up, speed_mbit=speed_mbit, node=node))
    return tuple(cards)


def read_accelerators(files: KernelFiles) -> tuple[Accelerator, ...]:
    accelerators: list[Accelerator] = []
    for address in files.entries("sys/bus/pci/devices"):
        folder = f"sys/bus/pci/devices/{address}"
        kind, vendor = files.text(f"{folder}/class"), files.text(f"{folder}/vendor")
        is_display = kind.startswith(_DISPLAY) and vendor in _VENDORS
        if is_display or kind.startswith(_ACCELERATOR):
            # The name that NVIDIA's driver gives a GPU, such as "NVIDIA A100-SXM4-40GB".
            driver = to_fields(files.text(f"proc/driver/nvidia/gpus/{address}/information"))
            name = f"{_VENDORS.get(vendor, vendor)} {files.text(f'{folder}/device')}"
            name = driver.get("Model") or name
            node = files.number(f"{folder}/numa_node")
            accelerators.append(Accelerator(address=address, name=name, node=node))
    return tuple(accelerators)
