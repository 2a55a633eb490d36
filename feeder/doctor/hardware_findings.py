"""What can be wrong with CPUs, NUMA nodes, their memory, the clock and network cards.

Source of what governors do: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and
amd-pstate.rst.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from feeder.doctor.facts import Finding, Governor, Machine, note, warning

_IMAGE_BYTES: Final = 224 * 224 * 3
IMAGES_PER_CORE: Final = 1_636  # daemon to client over tcp, docs/performance.md

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


def check_governors(machine: Machine) -> Iterator[Finding]:
    """Warn of anything but "performance" or a driver's own policy, which is a note."""
    own, slow = [], []
    for governor in machine.governors:
        if governor.name == "powersave" and governor.driver in _OWN_POLICY:
            own.append(governor)
        elif governor.name in _SLOW_GOVERNORS:
            slow.append(governor)
    if slow:
        yield warning(
            "cpu-governor",
            _list_governors(machine, slow),
            " ".join(dict.fromkeys(map(_explain_governor, slow))),
            "echo performance | sudo tee \\",
            "    /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if own:
        detail = "This driver sets the clock by the load. What that costs Feeder was not measured."
        for name in dict.fromkeys(governor.preference for governor in own):
            if name in _SAVING:
                detail += f" The energy preference is {name}, which favours saving power."
        yield note("cpu-governor", _list_governors(machine, own), detail)


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


def check_nodes(machine: Machine) -> Iterator[Finding]:
    cpus, memory_nodes = machine.allowed.cpus, machine.allowed.memory_nodes
    used = [node for node in machine.nodes if node.cpus & (cpus or node.cpus)]
    bare = [node.id for node in used if not node.memory_bytes]
    if bare and any(node.memory_bytes for node in machine.nodes):  # else sysfs shows no memory
        yield warning(
            "node-without-memory",
            f"{_have(bare)} CPUs but no memory",
            "Their workers use the memory of another node, over the link between the sockets, and "
            "share its bandwidth with that node's own workers.",
            "sudo dmidecode -t memory | grep -E 'Locator|Size'   # empty slots",
        )
    closed = [node.id for node in used if node.memory_bytes and node.id not in memory_nodes]
    if memory_nodes and closed:
        numbers = ",".join(str(number) for number in sorted(node.id for node in used))
        yield warning(
            "memory-mask",
            f"{_have(closed)} usable CPUs, but their memory may not be used",
            "Their workers use the memory of another node, at its bandwidth.",
            f"sudo systemctl set-property feeder AllowedMemoryNodes={numbers}",
            f"docker run --cpuset-mems {numbers} …",
        )


def check_cpu_count(machine: Machine) -> Iterator[Finding]:
    quota, cpus = machine.allowed.quota, len(machine.allowed.cpus)
    if quota is None:
        return
    # A quota above the machine's size is a common way to write "all".
    if 0 < cpus < int(quota) and not cpus >= machine.processor.online > 0:
        yield warning(
            "cpu-mask",
            f"the CPU mask has {_plural(cpus, 'CPU')}, but the quota allows {quota:g}",
            f"Feeder starts {_plural(cpus, 'worker')}; {int(quota) - cpus} more could run.",
            "sudo systemctl set-property feeder AllowedCPUs=   # empty: all CPUs",
            "docker update --cpuset-cpus LIST CONTAINER",
        )
    if quota < cpus:
        yield note(
            "cpu-quota",
            f"a quota of {quota:g} CPUs is spread over {_plural(cpus, 'CPU')}",
            f"Feeder starts {_plural(machine.allowed.count, 'worker')}. Whenever more threads run "
            "than the quota covers, the kernel stops all of them for the rest of the period (100 "
            "ms by default). A cpuset of as many CPUs has no such pauses.",
        )


def check_clock(machine: Machine) -> Iterator[Finding]:
    clock = machine.clock
    if clock.current not in _SLOW_CLOCKS:
        return
    lines = (
        "sudo dmesg | grep -i clocksource   # why the kernel distrusts tsc",
        "tsc=reliable   # on the kernel's command line, on sound hardware",
    )
    better = [name for name in _FAST_CLOCKS if name in clock.available]
    if better:
        lines = (f"echo {better[0]} | sudo tee \\", f"    {_CLOCK_FOLDER}/current_clocksource")
    yield warning(
        "clock-source",
        f"the clock source is {clock.current}, which takes a system call to read",
        "The system call alone made a reading take 280 ns instead of 24 (AMD EPYC, Linux 6.18); a "
        "device's register comes on top. The timers of ZeroMQ and Feeder read the clock for each "
        "message.",
        *lines,
    )


def check_vectors(machine: Machine) -> Iterator[Finding]:
    if machine.processor.vectors not in ("SSE4", "SSE2"):
        return
    detail = (
        "One core makes 2,230 samples/s without AVX2, 4,216 with it and 4,955 with AVX-512 VBMI, "
        "measured on one AMD EPYC (docs/performance.md)."
    )
    if machine.processor.is_virtual:
        yield warning(
            "cpu-vectors",
            "this virtual machine shows no AVX2, which its host most likely has",
            detail,
            "qemu-system-x86_64 -cpu host …",
            '<cpu mode="host-passthrough"/>   <!-- libvirt -->',
        )
    else:
        yield note("cpu-vectors", "this CPU has no AVX2", detail)


def check_devices(machine: Machine) -> Iterator[Finding]:
    """Note what is far from the CPUs or from its network card, and a network slower than them."""
    cards = [card for card in machine.cards if card.is_up]
    worker_nodes = {node.id for node in machine.nodes if node.cpus & machine.allowed.cpus}
    for card in cards:
        if worker_nodes and card.node is not None and card.node not in worker_nodes:
            yield note(
                "card-node",
                f"{card.name} is on node {card.node}, where Feeder has no usable CPU",
                "All batches over tcp cross the link between the nodes.",
            )
    here = {card.node for card in cards if card.node is not None}
    far = {each.node for each in machine.accelerators if each.node is not None} - here
    if len(worker_nodes) > 1 and here and far:
        yield note(
            "accelerator-node",
            f"accelerators on node {_join(far)} have no network card on their node; the cards are "
            f"on node {_join(here)}",
            "Trainers there receive remote batches across the link between the nodes.",
        )
    speeds = [card.speed_mbit or 0 for card in cards]
    allowed, cores = machine.allowed.count, machine.processor.cores
    workers = min(allowed, cores or allowed)  # threads of a core share what it makes
    most = sum(speeds) * 1_000_000 // 8 // _IMAGE_BYTES
    if speeds and all(speeds) and most < workers * IMAGES_PER_CORE:
        need = max(1, round(most / IMAGES_PER_CORE))
        yield note(
            "card-bandwidth",
            f"the network carries at most {most:,} images/s of 224 px ({sum(speeds):,} Mb/s); "
            f"{need} of {workers} cores make about as many",
            "Calculated, at 1,636 images/s a core over tcp (docs/performance.md). Trainers on this "
            "host that connect over ipc use no network.",
        )
    idle = [node for node in machine.nodes if node.memory_bytes and not node.cpus]  # such as CXL
    if idle:
        size = sum(node.memory_bytes for node in idle) / 2**30
        yield note(
            "node-without-cpus",
            f"{_have(node.id for node in idle)} memory ({size:,.0f} GiB) but no CPUs",
            "Feeder binds no process to it; the page cache may use it.",
        )


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'s' * (count != 1)}"


def _have(ids: Iterable[int]) -> str:
    numbers = sorted(ids)
    return f"node {_join(numbers)} has" if len(numbers) == 1 else f"nodes {_join(numbers)} have"


def _join(ids: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(ids))
