"""What can be wrong with CPUs, NUMA nodes, their memory, the clock and network cards.

Source of what governors do: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and
amd-pstate.rst.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from feeder.doctor.findings.facts import Governor, Machine, Node, Texts

_IMAGE_BYTES: Final = 224 * 224 * 3
_IMAGES_PER_CORE: Final = 1_636  # daemon to client over tcp, docs/performance.md

_SLOW_GOVERNORS: Final = {"powersave", "ondemand", "conservative", "schedutil", "userspace"}
_OWN_POLICY: Final = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose "powersave" follows the load; distributions use them. The same hardware under
"intel_cpufreq" and "amd-pstate" has the kernel's governors."""

_SAVING: Final = ("power", "balance_power")
"""Energy preferences that are biased to saving power."""

_SLOW_CLOCKS: Final = frozenset(
    {"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen", "hyperv_clocksource_msr"}
)
"""Clock sources that are read by a system call, not in the process (vdso(7))."""

_FAST_CLOCKS: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
_CLOCK_FOLDER: Final = "/sys/devices/system/clocksource/clocksource0"
_NARROW: Final = ("SSE4", "SSE2")
_VECTORS_COST: Final = (
    "One core makes 2,230 samples/s without AVX2, 4,216 with it and 4,955 with AVX-512 VBMI, "
    "measured on one AMD EPYC (docs/performance.md)."
)


def slow_governors(machine: Machine) -> Texts:
    """Usable CPUs are governed by anything but "performance" or a driver's own policy."""
    held = [
        governor
        for governor in machine.governors
        if governor.name in _SLOW_GOVERNORS and not _follows_load(governor)
    ]
    if held:
        yield (
            _list_governors(machine, held),
            " ".join(dict.fromkeys(map(_explain_governor, held))),
            "echo performance | sudo tee \\",
            "    /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )


def following_governors(machine: Machine) -> Texts:
    own = [governor for governor in machine.governors if _follows_load(governor)]
    saving = dict.fromkeys(each.preference for each in own if each.preference in _SAVING)
    if own:
        yield (
            _list_governors(machine, own),
            "This driver sets the clock by the load. What that costs Feeder was not measured."
            + "".join(
                f" The energy preference is {name}, which favours saving power." for name in saving
            ),
        )


def _follows_load(governor: Governor) -> bool:
    return governor.name == "powersave" and governor.driver in _OWN_POLICY


def _list_governors(machine: Machine, governors: Sequence[Governor]) -> str:
    total = sum(governor.cpus for governor in machine.governors)
    names = " and ".join(
        f"{governor.name} on {governor.cpus} of {total} usable CPU{'s' * (total > 1)}"
        + (f" (driver {governor.driver})" if governor.driver else "")
        for governor in governors
    )
    return f"the CPU frequency governor is {names}"


def _explain_governor(governor: Governor) -> str:
    least, most = governor.least_khz, governor.most_khz
    if governor.name == "userspace":
        return "It holds the clock wherever a program has set it."
    if governor.name != "powersave":
        return "The clock rises only after a load has lasted, so work after each pause is slower."
    if not (least and most and most > least):
        return "It holds the clock at its lowest."
    return (
        f"It holds the clock at {least // 1000:,} of up to {most // 1000:,} MHz: decoding, which "
        f"only computes, takes up to {most / least:.1f} times as long."
    )


def nodes_without_memory(machine: Machine) -> Texts:
    bare = [node.id for node in _used_nodes(machine) if not node.memory_bytes]
    if bare and any(node.memory_bytes for node in machine.nodes):  # else sysfs shows no memory
        yield (
            f"{_have(bare)} CPUs but no memory",
            "Their workers use the memory of another node, over the link between the sockets, and "
            "share its bandwidth with that node's own workers.",
            "sudo dmidecode -t memory | grep -E 'Locator|Size'   # empty slots",
        )


def closed_memory(machine: Machine) -> Texts:
    used, allowed = _used_nodes(machine), machine.allowed.memory_nodes
    closed = [node.id for node in used if node.memory_bytes and node.id not in allowed]
    if allowed and closed:
        nodes = ",".join(str(number) for number in sorted(node.id for node in used))
        yield (
            f"{_have(closed)} usable CPUs, but their memory may not be used",
            "Their workers use the memory of another node, at its bandwidth.",
            f"sudo systemctl set-property feeder AllowedMemoryNodes={nodes}",
            f"docker run --cpuset-mems {nodes} …",
        )


def nodes_without_cpus(machine: Machine) -> Texts:
    """Such as CXL memory."""
    idle = [node for node in machine.nodes if node.memory_bytes and not node.cpus]
    if idle:
        size = sum(node.memory_bytes for node in idle) / 2**30
        yield (
            f"{_have(node.id for node in idle)} memory ({size:,.0f} GiB) but no CPUs",
            "Feeder binds no process to it; the page cache may use it.",
        )


def _used_nodes(machine: Machine) -> list[Node]:
    return [node for node in machine.nodes if node.cpus & (machine.allowed.cpus or node.cpus)]


def narrow_mask(machine: Machine) -> Texts:
    quota, cpus = machine.allowed.quota, len(machine.allowed.cpus)
    # A quota above the machine's size is a common way to write "all".
    if quota is not None and 0 < cpus < int(quota) and not cpus >= machine.processor.online > 0:
        yield (
            f"the CPU mask has {_plural(cpus, 'CPU')}, but the quota allows {quota:g}",
            f"Feeder starts {_plural(cpus, 'worker')}; {int(quota) - cpus} more could run.",
            "sudo systemctl set-property feeder AllowedCPUs=   # empty: all CPUs",
            "docker update --cpuset-cpus LIST CONTAINER",
        )


def thin_quota(machine: Machine) -> Texts:
    quota, cpus = machine.allowed.quota, len(machine.allowed.cpus)
    if quota is not None and quota < cpus:
        yield (
            f"a quota of {quota:g} CPUs is spread over {_plural(cpus, 'CPU')}",
            f"Feeder starts {_plural(machine.allowed.count, 'worker')}. Whenever more threads run "
            "than the quota covers, the kernel stops all of them for the rest of the period (100 "
            "ms by default). A cpuset of as many CPUs has no such pauses.",
        )


def slow_clock(machine: Machine) -> Texts:
    clock = machine.clock
    lines = (
        "sudo dmesg | grep -i clocksource   # why the kernel distrusts tsc",
        "tsc=reliable   # on the kernel's command line, on sound hardware",
    )
    better = [name for name in _FAST_CLOCKS if name in clock.available]
    if better:
        lines = (f"echo {better[0]} | sudo tee \\", f"    {_CLOCK_FOLDER}/current_clocksource")
    if clock.current in _SLOW_CLOCKS:
        yield (
            f"the clock source is {clock.current}, which takes a system call to read",
            "The system call alone made a reading take 280 ns instead of 24 (AMD EPYC, Linux "
            "6.18); a device's register comes on top. The timers of ZeroMQ and Feeder read the "
            "clock for each message.",
            *lines,
        )


def hidden_vectors(machine: Machine) -> Texts:
    if machine.processor.vectors in _NARROW and machine.processor.is_virtual:
        yield (
            "this virtual machine shows no AVX2, which its host most likely has",
            _VECTORS_COST,
            "qemu-system-x86_64 -cpu host …",
            '<cpu mode="host-passthrough"/>   <!-- libvirt -->',
        )


def absent_vectors(machine: Machine) -> Texts:
    if machine.processor.vectors in _NARROW and not machine.processor.is_virtual:
        yield "this CPU has no AVX2", _VECTORS_COST


def far_cards(machine: Machine) -> Texts:
    nodes = _worker_nodes(machine)
    for card in machine.cards:
        if card.is_up and nodes and card.node is not None and card.node not in nodes:
            yield (
                f"{card.name} is on node {card.node}, where Feeder has no usable CPU",
                "All batches over tcp cross the link between the nodes.",
            )


def far_accelerators(machine: Machine) -> Texts:
    here = {card.node for card in machine.cards if card.is_up and card.node is not None}
    far = {each.node for each in machine.accelerators if each.node is not None} - here
    if len(_worker_nodes(machine)) > 1 and here and far:
        yield (
            f"accelerators on node {_join(far)} have no network card on their node; the cards are "
            f"on node {_join(here)}",
            "Trainers there receive remote batches across the link between the nodes.",
        )


def _worker_nodes(machine: Machine) -> set[int]:
    return {node.id for node in machine.nodes if node.cpus & machine.allowed.cpus}


def narrow_network(machine: Machine) -> Texts:
    speeds = [card.speed_mbit or 0 for card in machine.cards if card.is_up]
    allowed, cores = machine.allowed.count, machine.processor.cores
    workers = min(allowed, cores or allowed)  # threads of a core share what it makes
    most = sum(speeds) * 1_000_000 // 8 // _IMAGE_BYTES
    if speeds and all(speeds) and most < workers * _IMAGES_PER_CORE:
        need = max(1, round(most / _IMAGES_PER_CORE))
        yield (
            f"the network carries at most {most:,} images/s of 224 px ({sum(speeds):,} Mb/s); "
            f"{need} of {workers} cores make about as many",
            "Calculated, at 1,636 images/s a core over tcp (docs/performance.md). Trainers on this "
            "host that connect over ipc use no network.",
        )


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'s' * (count != 1)}"


def _have(ids: Iterable[int]) -> str:
    numbers = sorted(ids)
    return f"node {_join(numbers)} has" if len(numbers) == 1 else f"nodes {_join(numbers)} have"


def _join(ids: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(ids))
