"""All findings of a machine; here those on libraries, kernel files, load, memory and datasets."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from feeder.doctor.disk_cache import check_disk_cache
from feeder.doctor.facts import (
    DatasetPlace,
    Finding,
    Machine,
    SwapDevice,
    error,
    format_size,
    note,
    warning,
)
from feeder.doctor.hardware_findings import (
    check_clock,
    check_cpu_count,
    check_devices,
    check_governors,
    check_nodes,
    check_vectors,
)
from feeder.doctor.mounts import describe_detour, is_remote

FILES_WANTED: Final = 4096
"""Open files that are enough for the default limits of sessions, at any number of workers.
tests/doctor/test_findings.py compares it with feeder.daemon.node_plan."""

_CPU_PRESSURE: Final = 0.4
_MEMORY_PRESSURE: Final = 0.1
_IO_PRESSURE: Final = 0.3
"""Shares of the time. As many tasks as CPUs, which is a machine well used, cause up to a quarter of
CPU pressure; memory and storage that suffice next to none."""

_LOAD_A_CPU: Final = 1.5
_RESERVED_SHARE: Final = 0.1  # of the memory, in huge pages that nothing uses
_SWAPPED_BYTES: Final = 16 << 20  # any process may have a few idle pages in swap
_ZRAM: Final = re.compile(r"/dev/zram[0-9]+")
_SHRINKING: Final = (
    "Packing with `--max-side` and some augmentations use it. Shrinking 2000 × 1500 pixels to 512 "
    "took "
)
_EPYC: Final = " (one core of an AMD EPYC)."
_SWAP_OFF: Final = "sudo swapoff -a   # the whole machine"


def find_all(machine: Machine) -> tuple[Finding, ...]:
    """The worst come first, and among those of a severity what costs more throughput."""
    findings = [finding for check in _CHECKS for finding in check(machine)]
    return tuple(sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity)))


def _check_pressure(machine: Machine) -> Iterator[Finding]:
    """Where the kernel has no pressure, the load average stands for that of the CPUs.

    A busy machine on which only Feeder is busy is what it should be.
    """
    load, cpus = machine.load, machine.allowed.count
    average = "" if load.average is None else f"{load.average:g} on {cpus} CPUs"
    what = ""
    if load.cpu is not None and load.cpu >= _CPU_PRESSURE:
        what = _waited("the CPUs", load.cpu) + (f", load average {average}" if average else "")
    elif load.cpu is None and load.average is not None and load.average > _LOAD_A_CPU * cpus > 0:
        what = f"the load average is {average}"
    if what and (load.busy or not machine.daemons):
        names = [f"{each.name} (process {each.pid}, {each.cpus:.1f} CPUs)" for each in load.busy]
        pids = " ".join(str(each.pid) for each in load.busy)
        users = "no process that can be seen here uses much"
        if load.busy:
            users = f"most CPU time is used by {', '.join(names)}"
        lines = ["sudo systemctl set-property feeder CPUWeight=1000   # over other services"]
        if load.busy:
            lines.insert(0, f"sudo renice -n 19 -p {pids}   # or end them")
        yield warning(
            "cpu-pressure",
            f"{what}; {users}",
            "Each core that others use costs up to 1,636 images/s over tcp (docs/performance.md), "
            "and each wait for a CPU delays a batch.",
            *lines,
        )
    if (share := load.memory or 0) >= _MEMORY_PRESSURE:
        yield warning(
            "memory-pressure",
            _waited("memory", share),
            "Pages of datasets are evicted and read again, or programs are swapped out.",
            "ps -eo rss,pid,comm --sort=-rss | head   # what holds it",
        )
    if (share := load.io or 0) >= _IO_PRESSURE:
        yield warning(
            "storage-pressure",
            _waited("storage", share),
            "A worker that waits for a read fills no batch meanwhile.",
            "sudo iotop -oPb -n 3   # what reads and writes",
        )


def _waited(what: str, share: float) -> str:
    return f"tasks have waited for {what} {100 * share:.0f} % of the last 10 s"


def _check_swap(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    taken, may_take = "", memory.swap_limit_bytes != 0
    if memory.feeder_swapped_bytes >= _SWAPPED_BYTES:
        taken = (
            f"{memory.feeder_swapped_bytes / 2**20:,.0f} MiB of Feeder's processes are swapped out"
        )
    disks = [device for device in memory.swap if not _ZRAM.fullmatch(device.name)]
    if (disks and (taken or may_take)) or (taken and not memory.swap):
        container = "docker run --memory 64g --memory-swap 64g …   # the same figure twice"
        lines = ["sudo systemctl set-property feeder MemorySwapMax=0", container, _SWAP_OFF]
        if memory.cgroup_version == 1:  # for which systemd has no setting
            lines = [_SWAP_OFF, container]
        yield warning(
            "swap",
            taken or f"swap is enabled ({_describe_swap(disks)}) and may take Feeder's memory",
            "A batch or cached image that was swapped out waits for the disk, not for memory.",
            *lines,
        )
    elif memory.swap and not disks and (taken or may_take):
        enabled = f"swap is enabled in compressed memory (zram, {_describe_swap(memory.swap)})"
        yield note(
            "swap",
            f"{taken} to compressed memory (zram)" if taken else enabled,
            "A page that was swapped out is decompressed when it is next used; no disk is read. "
            "The cost was not measured.",
        )


def _describe_swap(devices: Sequence[SwapDevice]) -> str:
    size = format_size(sum(device.size_bytes for device in devices))
    return f"{size}, {format_size(sum(device.used_bytes for device in devices))} in use"


def _check_remote_datasets(machine: Machine) -> Iterator[Finding]:
    for place in machine.datasets:
        path = place.path.rstrip("/") or "/"
        name = path.rpartition("/")[2] or "dataset"
        if is_remote(place.kind, place.source):
            yield warning(
                "remote-dataset",
                f"the dataset {place.path} is on a network file system {_where(place)}",
                "Crops are read one by one in random order, so each read that the page cache does "
                "not answer waits for the network, in every epoch. If that server does not answer, "
                "neither do the dataset's batches.",
                f"cp -r {shlex.quote(path)} /LOCAL/DISK/   # then serve /LOCAL/DISK/{name}",
            )


def _check_indirect_datasets(machine: Machine) -> Iterator[Finding]:
    for place in machine.datasets:
        detour = describe_detour(place.kind, place.source)
        other = "the virtual machine's host" if "host" in detour else "another process"
        if detour and not is_remote(place.kind, place.source):
            yield note(
                "indirect-dataset",
                f"the dataset {place.path} is read {detour} {_where(place)}",
                f"Each read that the page cache does not answer waits for {other}, which may be "
                "slow. The cost was not measured.",
            )


def _where(place: DatasetPlace) -> str:
    return f"({place.kind}, {place.source}, mounted at {place.mount})"


def _check_libraries(machine: Machine) -> Iterator[Finding]:
    libraries, no_start = machine.libraries, "`feeder serve` would not start."
    names = libraries.missing
    if names:
        one = len(names) == 1
        yield error(
            "libraries",
            f"{'this library is' if one else 'these libraries are'} not installed in this "
            f"environment: {', '.join(names)}",
            f"`feeder serve`, or another command that needs {'it' if one else 'one of them'}, ends "
            "with an error. The other libraries were not looked at.",
            libraries.install,
        )
    if libraries.problem:
        yield error("libraries", libraries.problem, no_start, libraries.install)
    if libraries.self_test_problem:
        slower = 'decoder = "turbojpeg"   # under [serve]; samples take twice as long'
        yield error("self-test", libraries.self_test_problem, no_start, slower)
    yield from _check_pillow(machine)
    install = "pip install --force-reinstall --only-binary pyzmq 'pyzmq>=26,<28'"
    if libraries.crypto == "none":
        yield warning(
            "crypto",
            "libzmq was built without encryption (CURVE)",
            "Only clients of this machine can connect: keys, and so tcp to other machines, do not "
            "work.",
            install,
        )
    if libraries.crypto == "tweetnacl":
        yield warning(
            "crypto",
            "libzmq encrypts with tweetnacl, not with libsodium",
            "tcp with keys is much slower: tweetnacl has no vector code. With libsodium it has "
            "0.81 times the rate of plain tcp (docs/performance.md).",
            install,
        )


def _check_pillow(machine: Machine) -> Iterator[Finding]:
    libraries = machine.libraries
    has_avx2 = machine.processor.vectors in ("AVX2", "AVX-512")
    compiler = "CC='cc -mavx2' " if has_avx2 else ""
    build = (
        f"{compiler}pip install --force-reinstall --no-deps \\",
        "    --no-cache-dir --no-binary pillow-simd 'pillow-simd>=11.2'",
    )
    for line in libraries.pillow_problems:
        what, _, rest = line.partition(": ")
        if "Pillow-SIMD" in what:
            yield warning(
                "pillow",
                what,
                f"{_SHRINKING}31.4 ms with Pillow 13.0.0 and 4.3 ms with Pillow-SIMD 12.1.1{_EPYC} "
                "Packed and augmented pixels can differ from other feeders'.",
                "pip uninstall -y pillow",
                *build,
            )
        else:
            loss = rest.partition(";")[0]
            yield warning(
                "pillow-formats",
                what,
                f"{loss[:1].upper()}{loss[1:]}." if loss else "",
                "sudo apt-get install libtiff-dev libwebp-dev",
                *build,
            )
    if has_avx2 and libraries.pillow_is_simd and libraries.pillow_has_avx2 is False:
        yield warning(
            "pillow-vectors",
            "Pillow-SIMD was built for SSE4, and this CPU has AVX2",
            f"{_SHRINKING}4.8 ms with SSE4 and 4.3 ms with AVX2{_EPYC}",
            *build,
        )


def _check_kernel_files(machine: Machine) -> Iterator[Finding]:
    for line in machine.unreadable:
        file, cost = line.partition(" ")[0], "`feeder serve` would end with this message."
        yield error("kernel-files", line, cost, f"cat {file}   # report what it holds")


def _check_files(machine: Machine) -> Iterator[Finding]:
    hard = machine.limits.files_hard
    if hard is not None and hard < FILES_WANTED:
        yield warning(
            "open-files",
            f"a process may open at most {hard:,} files",
            "A session takes 4 in its node process and 2 in each worker, and each dataset up to "
            f"512 shards: {FILES_WANTED:,} are enough for the 512 sessions that are the default. "
            "With fewer, later clients are refused.",
            "sudo systemctl edit feeder   # add [Service] and LimitNOFILE=65536",
            "docker run --ulimit nofile=65536:65536 …",
            "echo '* hard nofile 65536' | sudo tee -a /etc/security/limits.conf",
        )


def _check_huge_pages(machine: Machine) -> Iterator[Finding]:
    total, lines = machine.memory.total_bytes, []
    free = 0
    for pool in machine.memory.reserved:
        free += pool.free * pool.size_bytes
        if pool.free:
            folder = f"/sys/kernel/mm/hugepages/hugepages-{pool.size_bytes // 1024}kB"
            lines += [f"echo {pool.total - pool.free} | sudo tee \\", f"    {folder}/nr_hugepages"]
    if total and free >= _RESERVED_SHARE * total:
        yield warning(
            "huge-pages",
            f"{free / 2**30:,.1f} GiB, {free / total:.0%} of the memory, are reserved in huge "
            "pages that nothing uses",
            "Feeder uses ordinary pages, so neither slots, caches nor the page cache can have that "
            "memory.",
            *lines,
        )


_SEVERITIES: Final = ("error", "warning", "note")
_CHECKS: Final[Sequence[Callable[[Machine], Iterator[Finding]]]] = (
    _check_pressure,
    check_governors,
    _check_swap,
    _check_remote_datasets,
    check_disk_cache,
    check_nodes,
    check_cpu_count,
    check_clock,
    check_vectors,
    _check_libraries,
    _check_kernel_files,
    _check_files,
    _check_huge_pages,
    _check_indirect_datasets,
    check_devices,
)
"""What costs more throughput comes first, among findings of a severity."""
