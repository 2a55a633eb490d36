"""Findings about memory: swap and reserved huge pages."""

import re
from collections.abc import Iterator, Sequence

from feeder.doctor.findings.facts import Machine, SwapDevice
from feeder.doctor.findings.finding import Finding, Severity

_RESERVED_SHARE = 0.1
"""Part of the memory in free huge pages from which they are worth a finding."""

_SWAPPED_BYTES = 16 << 20
"""Swapped memory from which there is a finding: any process may have a few idle pages in swap."""

_ZRAM = re.compile(r"/dev/zram[0-9]+")


def find_swap(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if Feeder's memory has been swapped out, or could be."""
    memory = machine.memory
    swapped = memory.feeder_swapped_bytes
    is_swapped = swapped >= _SWAPPED_BYTES
    if not is_swapped and (not memory.swap or memory.swap_limit_bytes == 0):
        return
    disks = [device for device in memory.swap if not _ZRAM.fullmatch(device.name)]
    taken = f"{swapped / 2**20:,.0f} MiB of Feeder's processes are swapped out"
    if memory.swap and not disks:
        what = f"swap is enabled in compressed memory (zram, {_describe(memory.swap)})"
        yield Finding(
            name="swap",
            severity=Severity.NOTE,
            what=f"{taken} to compressed memory (zram)" if is_swapped else what,
            detail=(
                "A page that was swapped out is decompressed when it is next used; no disk is "
                "read. The cost was not measured."
            ),
        )
        return
    what = f"swap is enabled ({_describe(disks)}) and may take Feeder's memory"
    yield Finding(
        name="swap",
        severity=Severity.WARNING,
        what=taken if is_swapped else what,
        detail="A batch or cached image that was swapped out waits for the disk, not for memory.",
        mend=_forbid_swap(memory.cgroup_version),
    )


def _describe(devices: Sequence[SwapDevice]) -> str:
    used = sum(device.used_bytes for device in devices)
    return f"{_size(sum(device.size_bytes for device in devices))}, {_size(used)} in use"


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / 2**30:,.1f} GiB"
    return f"{size_bytes / 2**20:.3g} MiB" if size_bytes else "none"


def _forbid_swap(cgroup_version: int | None) -> tuple[str, ...]:
    container = "docker run --memory 64g --memory-swap 64g …   # the same figure twice"
    machine = "sudo swapoff -a   # the whole machine"
    if cgroup_version == 1:  # for which systemd has no setting
        return machine, container
    return "sudo systemctl set-property feeder MemorySwapMax=0", container, machine


def find_reserved_pages(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if much memory is in free reserved huge pages, which Feeder never uses."""
    total = machine.memory.total_bytes
    free = sum(pages.free * pages.size_bytes for pages in machine.memory.reserved)
    if not total or free < _RESERVED_SHARE * total:
        return
    yield Finding(
        name="huge-pages",
        severity=Severity.WARNING,
        what=(
            f"{free / 2**30:,.1f} GiB, {free / total:.0%} of the memory, are reserved in huge "
            "pages that nothing uses"
        ),
        detail=(
            "Feeder uses ordinary pages, so neither slots, caches nor the page cache can have that "
            "memory."
        ),
        mend=tuple(
            line
            for pages in machine.memory.reserved
            if pages.free
            for line in (
                f"echo {pages.total - pages.free} | sudo tee \\",
                f"    /sys/kernel/mm/hugepages/hugepages-{pages.size_bytes // 1024}kB/nr_hugepages",
            )
        ),
    )
