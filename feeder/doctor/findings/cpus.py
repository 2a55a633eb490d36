"""Findings about CPUs, NUMA nodes and network cards."""

from collections.abc import Iterable, Iterator, Sequence

from feeder.doctor.findings.facts import Machine, NetworkCard
from feeder.doctor.findings.finding import Finding, Severity

_IMAGE_BYTES = 224 * 224 * 3
_IMAGES_PER_CORE = 1_636  # daemon to client over tcp, docs/performance.md


def find_narrow_mask(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if the CPU mask has fewer CPUs than the quota pays for, or far more."""
    allowed = machine.allowed
    if allowed.quota is None or not allowed.cpus:
        return
    quota, cpus = allowed.quota, len(allowed.cpus)
    if cpus < int(quota):
        # A quota above the machine's size is a common way to write "all".
        if cpus >= machine.processor.online > 0:
            return
        yield Finding(
            name="cpu-mask",
            severity=Severity.WARNING,
            what=f"the CPU mask has {_cpus(cpus)}, but the quota allows {quota:g}",
            detail=f"Feeder starts {_workers(cpus)}; {int(quota) - cpus} more could run.",
            mend=(
                "sudo systemctl set-property feeder AllowedCPUs=   # empty: all CPUs",
                "docker update --cpuset-cpus LIST CONTAINER",
            ),
        )
    elif quota < cpus:
        yield Finding(
            name="cpu-quota",
            severity=Severity.NOTE,
            what=f"a quota of {quota:g} CPUs is spread over {_cpus(cpus)}",
            detail=(
                f"Feeder starts {_workers(allowed.count)}. Whenever more threads run than the "
                "quota covers, the kernel stops all of them for the rest of the period (100 ms by "
                "default). A cpuset of as many CPUs has no such pauses."
            ),
        )


def find_missing_memory(machine: Machine) -> Iterator[Finding]:
    """Yield findings about nodes with CPUs and no memory, or with memory that may not be used."""
    if not any(node.memory_bytes for node in machine.nodes):
        return  # sysfs shows no memory at all: not known
    allowed = machine.allowed
    used = [node for node in machine.nodes if node.cpus & (allowed.cpus or node.cpus)]
    bare = [node.id for node in used if node.cpus and not node.memory_bytes]
    if bare:
        yield Finding(
            name="node-without-memory",
            severity=Severity.WARNING,
            what=f"{_nodes(bare)} CPUs but no memory",
            detail=(
                "Their workers use the memory of another node, over the link between the sockets, "
                "and share its bandwidth with that node's own workers."
            ),
            mend=("sudo dmidecode -t memory | grep -E 'Locator|Size'   # empty slots",),
        )
    if allowed.memory_nodes:
        closed = [
            node.id
            for node in used
            if node.memory_bytes and node.cpus and node.id not in allowed.memory_nodes
        ]
        if closed:
            nodes = ",".join(str(node) for node in sorted({node.id for node in used}))
            yield Finding(
                name="memory-mask",
                severity=Severity.WARNING,
                what=f"{_nodes(closed)} usable CPUs, but their memory may not be used",
                detail="Their workers use the memory of another node, at its bandwidth.",
                mend=(
                    f"sudo systemctl set-property feeder AllowedMemoryNodes={nodes}",
                    f"docker run --cpuset-mems {nodes} …",
                ),
            )


def find_memory_only_nodes(machine: Machine) -> Iterator[Finding]:
    """Yield a note about nodes without CPUs, such as CXL memory."""
    idle = [node for node in machine.nodes if node.memory_bytes and not node.cpus]
    if idle:
        size = sum(node.memory_bytes for node in idle) / 2**30
        yield Finding(
            name="node-without-cpus",
            severity=Severity.NOTE,
            what=f"{_nodes(node.id for node in idle)} memory ({size:,.0f} GiB) but no CPUs",
            detail="Feeder binds no process to it; the page cache may use it.",
        )


def find_narrow_vectors(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if an x86 CPU shows no AVX2."""
    processor = machine.processor
    if processor.vectors not in ("SSE4", "SSE2"):
        return
    cost = (
        "One core makes 2,230 samples/s without AVX2, 4,216 with it and 4,955 with AVX-512 "
        "VBMI, measured on one AMD EPYC (docs/performance.md)."
    )
    if processor.is_virtual:
        yield Finding(
            name="cpu-vectors",
            severity=Severity.WARNING,
            what="this virtual machine shows no AVX2, which its host most likely has",
            detail=cost,
            mend=(
                "qemu-system-x86_64 -cpu host …",
                '<cpu mode="host-passthrough"/>   <!-- libvirt -->',
            ),
        )
    else:
        yield Finding(
            name="cpu-vectors",
            severity=Severity.NOTE,
            what="this CPU has no AVX2",
            detail=cost,
        )


def find_far_cards(machine: Machine) -> Iterator[Finding]:
    """Yield notes about network cards on nodes without workers, and about too little bandwidth."""
    up = [card for card in machine.cards if card.is_up]
    with_cpus = [node for node in machine.nodes if node.cpus & machine.allowed.cpus]
    nodes = {node.id for node in with_cpus}
    for card in up:
        if nodes and card.node is not None and card.node not in nodes:
            yield Finding(
                name="card-node",
                severity=Severity.NOTE,
                what=f"{card.name} is on node {card.node}, where Feeder has no usable CPU",
                detail="All batches over tcp cross the link between the nodes.",
            )
    if len(nodes) > 1:
        here = {card.node for card in up if card.node is not None}
        far = {each.node for each in machine.accelerators if each.node is not None} - here
        if here and far:
            yield Finding(
                name="accelerator-node",
                severity=Severity.NOTE,
                what=(
                    f"accelerators on node {_list(far)} have no network card on their node; the "
                    f"cards are on node {_list(here)}"
                ),
                detail="Trainers there receive remote batches across the link between the nodes.",
            )
    yield from _find_bandwidth(machine, up)


def _find_bandwidth(machine: Machine, up: Sequence[NetworkCard]) -> Iterator[Finding]:
    speeds = [card.speed_mbit for card in up if card.speed_mbit]
    allowed, cores = machine.allowed.count, machine.processor.cores
    workers = min(allowed, cores or allowed)  # threads of a core share what it makes
    if not speeds or len(speeds) < len(up) or not workers:
        return
    most = sum(speeds) * 1_000_000 // 8 // _IMAGE_BYTES
    if most < workers * _IMAGES_PER_CORE:
        need = max(1, round(most / _IMAGES_PER_CORE))
        yield Finding(
            name="card-bandwidth",
            severity=Severity.NOTE,
            what=(
                f"the network carries at most {most:,} images/s of 224 px ({sum(speeds):,} Mb/s); "
                f"{need} of {workers} cores make about as many"
            ),
            detail=(
                "Calculated, at 1,636 images/s a core over tcp (docs/performance.md). Trainers on "
                "this host that connect over ipc use no network."
            ),
        )


def _cpus(count: int) -> str:
    return f"{count:,} CPU" if count == 1 else f"{count:,} CPUs"


def _workers(count: int) -> str:
    return f"{count:,} worker" if count == 1 else f"{count:,} workers"


def _nodes(ids: Iterable[int]) -> str:
    numbers = list(ids)
    return f"node {_list(numbers)} has" if len(numbers) == 1 else f"nodes {_list(numbers)} have"


def _list(ids: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(ids))
