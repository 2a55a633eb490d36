"""The facts about a machine, and what a finding is. `feeder doctor --json` prints these names.

Each fact has a value that means "not known", which causes no finding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from feeder.host.topology import NumaNode

UNLIMITED: Final = 2**63 - 1
"""A limit that is "unlimited"."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, what follows from it, and the exact lines that mend it."""

    name: str
    """A stable name for programs, such as "cpu-governor"."""
    severity: Literal["error", "warning", "note"]
    what: str
    """A clause without a final stop."""
    detail: str
    """Sentences: what it costs, with the source of each figure; empty where nothing is known."""
    mend: tuple[str, ...] = ()
    """Lines to type into a shell, or for a file, which a comment names; none for a unit, where a
    comment after a value is part of it. Empty for a note."""


def error(name: str, what: str, detail: str, *mend: str) -> Finding:
    """``feeder serve`` would not start, or batches would differ."""
    return Finding(name, "error", what, detail, mend)


def warning(name: str, what: str, detail: str, *mend: str) -> Finding:
    """Feeder works, slower or for fewer clients than the machine could."""
    return Finding(name, "warning", what, detail, mend)


def note(name: str, what: str, detail: str) -> Finding:
    """Nothing to mend for Feeder's sake, but good to know."""
    return Finding(name, "note", what, detail)


def format_size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / 2**30:,.1f} GiB"
    return f"{size_bytes / 2**20:.3g} MiB" if size_bytes else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPUs of the machine. ``cores`` and ``threads`` are None where sysfs shows no siblings."""

    model: str = ""
    vectors: str = ""  # the widest of "AVX-512", "AVX2", "SSE4" and "SSE2"
    is_virtual: bool = False
    online: int = 0
    cores: int | None = None
    threads: int | None = None  # the most of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the process may use of the machine, by its CPU mask, cpuset and cgroup quota."""

    cpus: frozenset[int] = frozenset()
    memory_nodes: frozenset[int] = frozenset()
    quota: float | None = None  # in CPUs
    count: int = 0
    reason: str = ""
    cpuset: str = ""  # in the kernel's list syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Governor:
    """A cpufreq governor, and how many of the usable CPUs it governs."""

    name: str
    driver: str
    cpus: int
    least_khz: int | None
    most_khz: int | None
    preference: str = ""  # of the hardware, such as balance_power; empty if it sets no clock


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCard:
    """A network interface with a device of its own."""

    name: str
    is_up: bool
    speed_mbit: int | None
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    address: str
    name: str
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages:
    """Reserved huge pages of one size. ``free`` are those that no program uses or has mapped."""

    size_bytes: int
    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapDevice:
    name: str
    size_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of the machine, and what the process's cgroup leaves of it."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    transparent: str = ""  # huge pages: always, madvise or never
    reserved: tuple[HugePages, ...] = ()
    swap: tuple[SwapDevice, ...] = ()
    swap_limit_bytes: int | None = None  # of the cgroup; None for no limit
    cgroup_version: int | None = None  # of the memory controller
    feeder_swapped_bytes: int = 0  # memory of Feeder's processes that is swapped out


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    files_soft: int | None = None
    files_hard: int | None = None
    locked_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    current: str = ""
    available: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPlace:
    """Where a dataset is stored: the mount that shows it, and that mount's file system."""

    path: str
    mount: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCachePlace(DatasetPlace):
    """Where the disk cache of datasets in object stores is, or would be."""

    problem: str = ""  # why none can be kept there, as a clause
    free_bytes: int | None = None
    used_bytes: int = 0  # by the samples in it
    full_bytes: int = 0  # of all samples of the datasets in it
    budget_bytes: int = 0  # cache.disk_bytes; 0: all room that there is
    write_bytes_a_s: float | None = None
    read_bytes_a_s: float | None = None


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """A process that is not Feeder's, and how many CPUs it uses."""

    name: str
    pid: int
    cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine is now.

    Pressure is the share of the last 10 s in which some task waited, 0 to 1: that of the machine or
    of the process's cgroup, whichever is higher.
    """

    average: float | None = None  # of the last minute: tasks that run or wait for a CPU or a disk
    cpu: float | None = None
    memory: float | None = None
    io: float | None = None
    busy: tuple[BusyProcess, ...] = ()  # the busiest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """The libraries of this process, and how they were built. Empty where not looked at.

    Problems are one line with its remedy.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # distributions that the daemon needs
    install: str = ""  # the command that installs them
    problem: str = ""  # why the daemon would refuse to start
    pillow_problems: tuple[str, ...] = ()  # of a Pillow that works nevertheless
    pillow_is_simd: bool = True
    pillow_has_avx2: bool | None = None
    decoder: str = ""  # our own, with its vector version, as "own (avx2)"
    self_test_problem: str = ""
    crypto: str = ""  # what libzmq encrypts with: libsodium, tweetnacl, none or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All facts. CPU mask, cgroup and limits are those of ``process``, a folder in /proc."""

    process: str = "self"
    kernel: str = ""
    processor: Processor = Processor()
    nodes: tuple[NumaNode, ...] = ()
    allowed: Allowed = Allowed()
    governors: tuple[Governor, ...] = ()
    cards: tuple[NetworkCard, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    memory: Memory = Memory()
    limits: Limits = Limits()
    clock: Clock = Clock()
    load: Load = Load()
    datasets: tuple[DatasetPlace, ...] = ()
    disk_cache: DiskCachePlace | None = None
    daemons: tuple[int, ...] = ()  # process numbers of ``feeder serve`` on this machine
    libraries: Libraries = field(default_factory=Libraries)
    unreadable: tuple[str, ...] = ()  # kernel files that cannot be parsed, a line each
