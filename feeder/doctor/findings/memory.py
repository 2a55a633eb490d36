"""Findings about memory: swap and reserved huge pages."""

from collections.abc import Iterator

from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding, Severity

_RESERVED_SHARE = 0.1
"""Part of the memory in free huge pages from which they are worth a finding."""


def find_swap(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if Feeder's memory has been swapped out, or could be."""
    memory = machine.memory
    swapped = memory.feeder_swapped_bytes
    if not swapped and (not memory.swap or memory.swap_limit_bytes == 0):
        return
    size, used = (
        sum(getattr(device, name) for device in memory.swap) / 2**30
        for name in ("size_bytes", "used_bytes")
    )
    in_use = f"{used:,.1f} GiB in use" if used else "none in use"
    what = f"swap is enabled ({size:,.1f} GiB, {in_use}) and may take Feeder's memory"
    if swapped:
        what = f"{swapped / 2**20:,.0f} MiB of Feeder's processes are swapped out"
    yield Finding(
        name="swap",
        severity=Severity.WARNING,
        what=what,
        detail="A batch or cached image that was swapped out waits for the disk, not for memory.",
        mend=(
            "sudo systemctl set-property feeder MemorySwapMax=0",
            "docker run --memory 64g --memory-swap 64g …   # the same figure twice",
            "sudo swapoff -a   # the whole machine",
        ),
    )


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
