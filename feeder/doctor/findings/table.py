"""The table of findings. A condition yields what is wrong, what it costs, and what mends it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from feeder.doctor.findings import hardware, system
from feeder.doctor.findings.facts import Machine, Texts


class Severity(IntEnum):
    """How bad a finding is; the worst is the greatest."""

    NOTE = 0
    """Nothing to mend for Feeder's sake, but good to know."""
    WARNING = 1
    """Feeder works, slower or for fewer clients than the machine could."""
    ERROR = 2
    """``feeder serve`` would not start, or batches would differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, what follows from it, and the exact lines that mend it."""

    name: str
    """A stable name for programs, such as "cpu-governor"."""
    severity: Severity
    what: str
    """A clause without a final stop."""
    detail: str
    """Sentences: what it costs, with the source of each figure; empty where nothing is known."""
    mend: tuple[str, ...] = ()
    """Lines to type into a shell, or for a file, which a comment names; none for a unit, where a
    comment after a value is part of it. Empty for a note."""


_NOTE, _WARNING, _ERROR = Severity
TABLE: Final[Sequence[tuple[str, Severity, Callable[[Machine], Texts]]]] = (
    ("libraries", _ERROR, system.missing_libraries),
    ("libraries", _ERROR, system.broken_libraries),
    ("self-test", _ERROR, system.failed_self_test),
    ("kernel-files", _ERROR, system.unreadable_files),
    ("cpu-pressure", _WARNING, system.cpu_pressure),
    ("memory-pressure", _WARNING, system.memory_pressure),
    ("storage-pressure", _WARNING, system.storage_pressure),
    ("cpu-governor", _WARNING, hardware.slow_governors),
    ("swap", _WARNING, system.swap_on_disk),
    ("remote-dataset", _WARNING, system.remote_datasets),
    ("node-without-memory", _WARNING, hardware.nodes_without_memory),
    ("memory-mask", _WARNING, hardware.closed_memory),
    ("cpu-mask", _WARNING, hardware.narrow_mask),
    ("clock-source", _WARNING, hardware.slow_clock),
    ("cpu-vectors", _WARNING, hardware.hidden_vectors),
    ("pillow", _WARNING, system.plain_pillow),
    ("pillow-formats", _WARNING, system.pillow_formats),
    ("pillow-vectors", _WARNING, system.narrow_pillow),
    ("crypto", _WARNING, system.weak_crypto),
    ("open-files", _WARNING, system.few_files),
    ("huge-pages", _WARNING, system.reserved_pages),
    ("cpu-governor", _NOTE, hardware.following_governors),
    ("swap", _NOTE, system.swap_in_memory),
    ("cpu-quota", _NOTE, hardware.thin_quota),
    ("cpu-vectors", _NOTE, hardware.absent_vectors),
    ("indirect-dataset", _NOTE, system.indirect_datasets),
    ("card-node", _NOTE, hardware.far_cards),
    ("accelerator-node", _NOTE, hardware.far_accelerators),
    ("card-bandwidth", _NOTE, hardware.narrow_network),
    ("node-without-cpus", _NOTE, hardware.nodes_without_cpus),
)
"""The worst come first, and among those of a severity what costs more throughput."""


def find_all(machine: Machine) -> tuple[Finding, ...]:
    return tuple(
        Finding(name=name, severity=severity, what=what, detail=detail, mend=tuple(mend))
        for name, severity, condition in TABLE
        for what, detail, *mend in condition(machine)
    )
