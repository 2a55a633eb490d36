"""All conditions, the worst first."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from feeder.doctor.findings import cpus, datasets, governors, libraries, memory, system
from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding

Condition = Callable[[Machine], Iterator[Finding]]

CONDITIONS: Final[Sequence[Condition]] = (
    libraries.find_broken_libraries,
    system.find_unreadable,
    system.find_pressure,
    governors.find_governor,
    memory.find_swap,
    datasets.find_remote_datasets,
    cpus.find_missing_memory,
    cpus.find_narrow_mask,
    system.find_slow_clock,
    cpus.find_narrow_vectors,
    libraries.find_pillow,
    libraries.find_weak_crypto,
    system.find_few_files,
    memory.find_reserved_pages,
    datasets.find_indirect_datasets,
    cpus.find_far_cards,
    cpus.find_memory_only_nodes,
)
"""Among findings of the same severity, what costs more throughput comes first."""


def find_all(machine: Machine) -> tuple[Finding, ...]:
    """Return every finding about a machine, the worst first."""
    found = [finding for condition in CONDITIONS for finding in condition(machine)]
    return tuple(sorted(found, key=lambda finding: -finding.severity))
