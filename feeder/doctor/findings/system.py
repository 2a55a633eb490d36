"""What can be wrong with libraries, kernel files, load, memory, open files and datasets."""

import re
from collections.abc import Sequence
from typing import Final

from feeder.doctor.findings.facts import DatasetPlace, Machine, SwapDevice, Texts
from feeder.doctor.findings.file_systems import describe_detour, is_remote

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
_PLAIN: Final = re.compile(r"[\w./+@:,-]+")
_SHRINKING: Final = (
    "Packing with `--max-side` and some augmentations use it. Shrinking 2000 × 1500 pixels to 512 "
    "took "
)
_EPYC: Final = " (one core of an AMD EPYC)."
_SWAP_OFF: Final = "sudo swapoff -a   # the whole machine"


def missing_libraries(machine: Machine) -> Texts:
    names = machine.libraries.missing
    one = len(names) == 1
    if names:
        yield (
            f"{'this library is' if one else 'these libraries are'} not installed in this "
            f"environment: {', '.join(names)}",
            f"`feeder serve`, or another command that needs {'it' if one else 'one of them'}, ends "
            "with an error. The other libraries were not looked at.",
            machine.libraries.install,
        )


def broken_libraries(machine: Machine) -> Texts:
    if machine.libraries.problem:
        cost = "`feeder serve` would not start."
        yield machine.libraries.problem, cost, machine.libraries.install


def failed_self_test(machine: Machine) -> Texts:
    if machine.libraries.self_test_problem:
        yield (
            machine.libraries.self_test_problem,
            "`feeder serve` would not start.",
            'decoder = "turbojpeg"   # under [serve]; samples take twice as long',
        )


def plain_pillow(machine: Machine) -> Texts:
    for line in machine.libraries.pillow_problems:
        what = line.partition(": ")[0]
        if "Pillow-SIMD" in what:
            yield (
                what,
                f"{_SHRINKING}31.4 ms with Pillow 13.0.0 and 4.3 ms with Pillow-SIMD 12.1.1{_EPYC} "
                "Packed and augmented pixels can differ from other feeders'.",
                "pip uninstall -y pillow",
                *_build_pillow(machine),
            )


def pillow_formats(machine: Machine) -> Texts:
    for line in machine.libraries.pillow_problems:
        what, _, rest = line.partition(": ")
        loss = rest.partition(";")[0]
        if "Pillow-SIMD" not in what:
            yield (
                what,
                f"{loss[:1].upper()}{loss[1:]}." if loss else "",
                "sudo apt-get install libtiff-dev libwebp-dev",
                *_build_pillow(machine),
            )


def narrow_pillow(machine: Machine) -> Texts:
    libraries = machine.libraries
    if _has_avx2(machine) and libraries.pillow_is_simd and libraries.pillow_has_avx2 is False:
        yield (
            "Pillow-SIMD was built for SSE4, and this CPU has AVX2",
            f"{_SHRINKING}4.8 ms with SSE4 and 4.3 ms with AVX2{_EPYC}",
            *_build_pillow(machine),
        )


def _build_pillow(machine: Machine) -> Sequence[str]:
    compiler = "CC='cc -mavx2' " if _has_avx2(machine) else ""
    return (
        f"{compiler}pip install --force-reinstall --no-deps \\",
        "    --no-cache-dir --no-binary pillow-simd 'pillow-simd>=11.2'",
    )


def _has_avx2(machine: Machine) -> bool:
    return machine.processor.vectors in ("AVX2", "AVX-512")


def weak_crypto(machine: Machine) -> Texts:
    install = "pip install --force-reinstall --only-binary pyzmq 'pyzmq>=26,<28'"
    if machine.libraries.crypto == "none":
        yield (
            "libzmq was built without encryption (CURVE)",
            "Only clients of this machine can connect: keys, and so tcp to other machines, do not "
            "work.",
            install,
        )
    if machine.libraries.crypto == "tweetnacl":
        yield (
            "libzmq encrypts with tweetnacl, not with libsodium",
            "tcp with keys is much slower: tweetnacl has no vector code. With libsodium it has "
            "0.81 times the rate of plain tcp (docs/performance.md).",
            install,
        )


def unreadable_files(machine: Machine) -> Texts:
    for line in machine.unreadable:
        file = line.partition(" ")[0]
        cost = "`feeder serve` would end with this message."
        yield line, cost, f"cat {file}   # report what it holds"


def few_files(machine: Machine) -> Texts:
    hard = machine.limits.files_hard
    if hard is not None and hard < FILES_WANTED:
        yield (
            f"a process may open at most {hard:,} files",
            "A session takes 4 in its node process and 2 in each worker, and each dataset up to "
            f"512 shards: {FILES_WANTED:,} are enough for the 512 sessions that are the default. "
            "With fewer, later clients are refused.",
            "sudo systemctl edit feeder   # add [Service] and LimitNOFILE=65536",
            "docker run --ulimit nofile=65536:65536 …",
            "echo '* hard nofile 65536' | sudo tee -a /etc/security/limits.conf",
        )


def cpu_pressure(machine: Machine) -> Texts:
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
    names = [f"{each.name} (process {each.pid}, {each.cpus:.1f} CPUs)" for each in load.busy]
    pids = " ".join(str(each.pid) for each in load.busy)
    if what and (names or not machine.daemons):
        users = f"most CPU time is used by {', '.join(names)}"
        yield (
            f"{what}; {users if names else 'no process that can be seen here uses much'}",
            "Each core that others use costs up to 1,636 images/s over tcp (docs/performance.md), "
            "and each wait for a CPU delays a batch.",
            *([f"sudo renice -n 19 -p {pids}   # or end them"] if names else []),
            "sudo systemctl set-property feeder CPUWeight=1000   # over other services",
        )


def memory_pressure(machine: Machine) -> Texts:
    if (share := machine.load.memory or 0) >= _MEMORY_PRESSURE:
        yield (
            _waited("memory", share),
            "Pages of datasets are evicted and read again, or programs are swapped out.",
            "ps -eo rss,pid,comm --sort=-rss | head   # what holds it",
        )


def storage_pressure(machine: Machine) -> Texts:
    if (share := machine.load.io or 0) >= _IO_PRESSURE:
        yield (
            _waited("storage", share),
            "A worker that waits for a read fills no batch meanwhile.",
            "sudo iotop -oPb -n 3   # what reads and writes",
        )


def _waited(what: str, share: float) -> str:
    return f"tasks have waited for {what} {100 * share:.0f} % of the last 10 s"


def swap_on_disk(machine: Machine) -> Texts:
    memory = machine.memory
    disks = [device for device in memory.swap if not _ZRAM.fullmatch(device.name)]
    taken = _describe_taken(machine)
    container = "docker run --memory 64g --memory-swap 64g …   # the same figure twice"
    lines = ["sudo systemctl set-property feeder MemorySwapMax=0", container, _SWAP_OFF]
    if memory.cgroup_version == 1:  # for which systemd has no setting
        lines = [_SWAP_OFF, container]
    if (disks and (taken or memory.swap_limit_bytes != 0)) or (taken and not memory.swap):
        yield (
            taken or f"swap is enabled ({_describe_swap(disks)}) and may take Feeder's memory",
            "A batch or cached image that was swapped out waits for the disk, not for memory.",
            *lines,
        )


def swap_in_memory(machine: Machine) -> Texts:
    memory, taken = machine.memory, _describe_taken(machine)
    is_zram = memory.swap and all(_ZRAM.fullmatch(device.name) for device in memory.swap)
    if is_zram and (taken or memory.swap_limit_bytes != 0):
        enabled = f"swap is enabled in compressed memory (zram, {_describe_swap(memory.swap)})"
        yield (
            f"{taken} to compressed memory (zram)" if taken else enabled,
            "A page that was swapped out is decompressed when it is next used; no disk is read. "
            "The cost was not measured.",
        )


def _describe_taken(machine: Machine) -> str:
    swapped = machine.memory.feeder_swapped_bytes
    if swapped < _SWAPPED_BYTES:
        return ""
    return f"{swapped / 2**20:,.0f} MiB of Feeder's processes are swapped out"


def _describe_swap(devices: Sequence[SwapDevice]) -> str:
    size = _format_size(sum(device.size_bytes for device in devices))
    return f"{size}, {_format_size(sum(device.used_bytes for device in devices))} in use"


def _format_size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / 2**30:,.1f} GiB"
    return f"{size_bytes / 2**20:.3g} MiB" if size_bytes else "none"


def reserved_pages(machine: Machine) -> Texts:
    total, pools = machine.memory.total_bytes, machine.memory.reserved
    free = sum(pool.free * pool.size_bytes for pool in pools)
    if total and free >= _RESERVED_SHARE * total:
        yield (
            f"{free / 2**30:,.1f} GiB, {free / total:.0%} of the memory, are reserved in huge "
            "pages that nothing uses",
            "Feeder uses ordinary pages, so neither slots, caches nor the page cache can have that "
            "memory.",
            *(
                line
                for pool in pools
                if pool.free
                for line in (
                    f"echo {pool.total - pool.free} | sudo tee \\",
                    "    /sys/kernel/mm/hugepages/"
                    f"hugepages-{pool.size_bytes // 1024}kB/nr_hugepages",
                )
            ),
        )


def remote_datasets(machine: Machine) -> Texts:
    for place in machine.datasets:
        path = place.path.rstrip("/") or "/"
        name = path.rpartition("/")[2] or "dataset"
        quoted = path if _PLAIN.fullmatch(path) else "'" + path.replace("'", "'\\''") + "'"
        if is_remote(place.kind, place.source):
            yield (
                f"the dataset {place.path} is on a network file system {_where(place)}",
                "Crops are read one by one in random order, so each read that the page cache does "
                "not answer waits for the network, in every epoch. If that server does not answer, "
                "neither do the dataset's batches.",
                f"cp -r {quoted} /LOCAL/DISK/   # then serve /LOCAL/DISK/{name}",
            )


def indirect_datasets(machine: Machine) -> Texts:
    for place in machine.datasets:
        detour = describe_detour(place.kind, place.source)
        other = "the virtual machine's host" if "host" in detour else "another process"
        if detour and not is_remote(place.kind, place.source):
            yield (
                f"the dataset {place.path} is read {detour} {_where(place)}",
                f"Each read that the page cache does not answer waits for {other}, which may be "
                "slow. The cost was not measured.",
            )


def _where(place: DatasetPlace) -> str:
    return f"({place.kind}, {place.source}, mounted at {place.mount})"
